# SPDX-License-Identifier: Apache-2.0
"""A scorer in another project's Cython module marks victims through kvshm.eviction's .pxd."""
import subprocess
import sys

from kvshm import eviction
from support.arenas import keys, store

SETUP = """\
from Cython.Build import cythonize
from kvshm import paths
from setuptools import Extension, setup

setup(name="scorer", version="1", ext_modules=cythonize([Extension(
    "scorer", ["scorer.pyx"], language="c++", include_dirs=[paths.include_dir()],
    extra_compile_args=["-std=c++20", "-O0"])], language_level=3))
"""

MODULE = """\
from libc.stdint cimport uint32_t, uint64_t
from kvshm cimport Arena
from kvshm.ckvshm cimport kvshm_block_record
from kvshm.eviction cimport mark
from kvshm.words cimport inactive


cdef double youngest(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    return 1.0 / (1 + <uint32_t>(now - b.stamp)) if inactive(b) else -1


def mark_youngest(Arena arena, uint64_t n):
    return mark(arena, n, youngest, NULL, NULL, NULL)
"""

USE = """\
import sys
import kvshm, scorer
arena = kvshm.Arena.attach(sys.argv[1])
print(scorer.mark_youngest(arena, 2))
arena.close()
"""


def run(*command, cwd):
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, timeout=110,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_scorer_of_another_project(arena, tmp_path):
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "scorer.pyx").write_text(MODULE)
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path)
    wanted = keys(16, seed=50)
    for key in wanted:
        store(arena, [key]).release()
    assert run(sys.executable, "-c", USE, arena.name, cwd=tmp_path).strip() == "2"
    assert eviction.marks_left(arena) == 2
    fills = [arena.allocate(1) for _ in range(2)]
    order = [bytes(key) for fill in fills for key in fill.evicted]
    assert order == [bytes(wanted[15]), bytes(wanted[14])]
