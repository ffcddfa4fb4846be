# SPDX-License-Identifier: Apache-2.0
"""ckvshm.pxd is the header: nothing missing, and every signature compiles against it."""
import re
from pathlib import Path

from support import headers

ROOT = Path(__file__).resolve().parents[2]
HEADER = headers.text()
MIRROR = (ROOT / "src" / "kvshm" / "ckvshm.pxd").read_text()


def words(pattern, text):
    return set(re.findall(pattern, re.sub(r"(?s)/\*.*?\*/", "", text)))


def test_every_function_is_mirrored():
    functions = words(r"(?m)^KVSHM_API[^;(]*?\b(kvshm_\w+)\(", HEADER)
    assert len(functions) > 50
    assert functions <= words(r"\b(kvshm_\w+)\(", MIRROR)
    assert words(r"(?m)^    (?:const )?[a-z]\w* \*?(kvshm_\w+)\(", MIRROR) - functions <= {
        "kvshm_identity_init", "kvshm_options_init", "kvshm_fill_options_init",
        "kvshm_device_options_init", "kvshm_policy_init", "kvshm_tier_options_init"}


def test_every_type_and_constant_is_mirrored():
    types = words(r"\}\s*(kvshm_\w+);", HEADER)
    assert len(types) > 12 and types <= words(r"\b(kvshm_\w+)\b", MIRROR)
    bare = re.sub(r"(?s)/\*.*?\*/", "", HEADER)
    constants = {name for body in re.findall(r"(?s)enum\s*\{(.*?)\}", bare)
                 for name in re.findall(r"KVSHM_[A-Z0-9_]+", body)}
    assert len(constants) > 50
    missing = constants - words(r"\b(KVSHM_[A-Z0-9_]+)\b", MIRROR)
    assert not missing


def test_the_signatures_agree_in_their_number_of_arguments():
    def arities(text, pattern):
        text = re.sub(r"(?s)/\*.*?\*/", "", text)
        found = {}
        for name, inside in re.findall(pattern, text):
            inside = inside.strip()
            found[name] = 0 if inside in ("", "void") else inside.count(",") + 1
        return found

    header = arities(HEADER, r"(?s)KVSHM_API[^;(]*?\b(kvshm_\w+)\(([^()]*)\);")
    mirror = arities(MIRROR, r"(?s)\n    [a-z][^\n(]*?\b(kvshm_\w+)\(([^()]*)\)")
    assert {name: mirror[name] for name in header} == header
