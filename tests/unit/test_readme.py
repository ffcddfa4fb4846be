# SPDX-License-Identifier: Apache-2.0
"""The examples of the README run as they stand there."""
import re
import subprocess
import sys
from pathlib import Path

import kvshm
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.S)
    assert found, f"the README has no example in {language}"
    return found[1]


@pytest.fixture
def auto_arena():
    """The arena that the Python example opens, gone before and after."""
    ident = kvshm.Identity(model="llama-3.1-8b", weights="sha256:...", dtype="bfloat16",
                           layout="BLHNC", block_tokens=16)
    name = kvshm.auto_name(ident)

    def gone():
        try:
            kvshm.remove(name)
        except kvshm.ArenaNotFound:
            pass
    gone()
    yield name
    gone()


def test_the_python_example(auto_arena):
    code = example("python") + "\nprint(len(hit), len(fill), arena.name)\n"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           timeout=100, check=False) for _ in range(2)]
    assert [r.returncode for r in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    # 1000 tokens are 62 full blocks: stored by the first process, found by the second.
    assert runs[0].stdout.split() == ["0", "62", auto_arena]
    assert runs[1].stdout.split() == ["62", "0", auto_arena]


def test_the_c_example(tmp_path, arena_name):
    code = example("c").replace('"example"', f'"{arena_name}"').replace("1ull << 30", "64 << 20")
    head, body = code.split("#include <kvshm.h>")
    source = ("#include <stdio.h>\n#include <kvshm.h>\nstatic void use(void *p) { (void)p; }\n"
              "int main(void) {\nkvshm_key keys[64] = {{1}};\n"
              "for (int k = 0; k < 64; k++) keys[k][0] = 1 + k;\n" + body +
              'printf("%d\\n", (int)n);\nreturn kvshm_close(a, 1000);\n}\n')
    (tmp_path / "example.c").write_text(head + source)
    package = Path(kvshm.__file__).parent
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", f"-I{package}/include",
                    tmp_path / "example.c", "-o", tmp_path / "example", f"-L{package}/lib",
                    "-lkvshm", f"-Wl,-rpath,{package}/lib"], check=True, timeout=60)
    done = subprocess.run([tmp_path / "example"], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
