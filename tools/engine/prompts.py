# SPDX-License-Identifier: Apache-2.0
"""The prompts file: one system prompt that all conversations share, and the users' turns.

    # a comment, up to the first section
    == system
    Any text, several lines.
    == conversation: a name
    user: the first question
    user: the second, asked after the answer to the first
      (an indented line goes on with the turn above)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parent / "data" / "prompts.txt"


class PromptsError(ValueError):
    """The file is not in the format; the message names file, line and what was expected."""


@dataclass(frozen=True)
class Conversation:
    name: str
    turns: list[str]


@dataclass(frozen=True)
class Prompts:
    system: str
    conversations: list[Conversation]


def load(path: Path) -> Prompts:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptsError(f"cannot read prompts file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PromptsError(f"{path} is not UTF-8 text: byte {error.start}") from error
    return parse(text, str(path))


def parse(text: str, where: str = "prompts") -> Prompts:
    system: list[str] | None = None
    conversations: list[Conversation] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where}:{number}"
        if line.startswith("== "):
            title = line[3:].strip()
            section = title.partition(":")[0].strip()
            if section == "system":
                if system is not None:
                    raise PromptsError(f"{place}: a second system prompt; there is one for all")
                system = []
            elif section == "conversation":
                name = title.partition(":")[2].strip()
                conversations.append(Conversation(name or f"{len(conversations) + 1}", []))
            else:
                raise PromptsError(
                    f"{place}: unknown section {section!r}; expected 'system' or "
                    "'conversation: NAME'"
                )
        elif section == "system":
            assert system is not None
            system.append(line)
        elif section == "conversation":
            _turn_line(conversations[-1].turns, line, place)
        elif line.strip() and not line.startswith("#"):
            raise PromptsError(f"{place}: text before the first section ('== system')")
    return _checked(system, conversations, where)


def _turn_line(turns: list[str], line: str, place: str) -> None:
    if line.startswith("user:"):
        turns.append(line[5:].strip())
    elif line[:1] in (" ", "\t") and line.strip() and turns:
        turns[-1] += " " + line.strip()
    elif line.strip():
        raise PromptsError(f"{place}: expected 'user: ...' or an indented continuation")


def _checked(
    system: list[str] | None, conversations: list[Conversation], where: str
) -> Prompts:
    body = "\n".join(system or []).strip()
    if not body:
        raise PromptsError(f"{where}: no system prompt (a section '== system' with text)")
    if not conversations:
        raise PromptsError(f"{where}: no conversation (a section '== conversation: NAME')")
    for conversation in conversations:
        if not conversation.turns or not all(conversation.turns):
            raise PromptsError(
                f"{where}: conversation {conversation.name!r} needs at least one 'user:' line, "
                "none of them empty"
            )
    return Prompts(body, conversations)
