# SPDX-License-Identifier: Apache-2.0
"""A program outside the project finds, compiles against and runs on an installed kvshm."""
import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest
from support import headers

HERE = Path(__file__).resolve().parent
PEDANTIC = ["-pedantic-errors", "-Wall", "-Wextra", "-Werror"]


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], text=True, timeout=100,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("language, standard", [
    ("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")])
def test_each_header_stands_alone(language: str, standard: str, tmp_path: Path) -> None:
    assert "kvshm.h" in headers.NAMES
    for name in headers.NAMES:
        source = tmp_path / "alone"
        source.write_text(f'#include "{headers.FOLDER / name}"\n')
        run("cc", "-x", language, f"-std={standard}", *PEDANTIC, "-fsyntax-only", source)


def test_one_header_includes_all(tmp_path: Path) -> None:
    source = tmp_path / "all.c"
    source.write_text('#include "kvshm.h"\n')
    read = run("cc", "-MM", f"-I{headers.FOLDER}", source)
    assert {name for name in headers.NAMES if f"/{name}" in read} == set(headers.NAMES)


def test_initializers_fill_the_structs(tmp_path: Path) -> None:
    """Each ..._INIT macro compiles without a missing-field warning and sets the size."""
    names = [line.split()[1] for line in headers.text().splitlines()
             if line.startswith("#define KVSHM_") and "_INIT" in line.split()[1]]
    assert len(names) >= 8
    checks = ""
    for name in names:
        struct = name.removesuffix("_INIT").lower()
        checks += f"  {{ {struct} x = {name}; if (x.size != sizeof x) return 1; }}\n"
    source = tmp_path / "init.c"
    header = headers.FOLDER / "kvshm.h"
    source.write_text(f'#include "{header}"\nint main(void) {{\n{checks}  return 0;\n}}\n')
    run("cc", "-std=c99", *PEDANTIC, "-Wno-missing-field-initializers", source,
        "-o", tmp_path / "init")
    run(tmp_path / "init")


def test_pkg_config_consumer(prefix: Path, tmp_path: Path, arena_name: str) -> None:
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("/usr/bin/pkg-config", "--cflags", "--libs", "kvshm", env=env).split()
    program = tmp_path / "consumer"
    run("cc", "-std=c99", *PEDANTIC, HERE / "consumer" / "main.c", *flags,
        f"-Wl,-rpath,{prefix / 'lib'}", "-o", program)
    version = importlib.metadata.version("kvshm")
    assert run(program, arena_name) == f"{version}\n"
    assert run("/usr/bin/pkg-config", "--modversion", "kvshm", env=env) == f"{version}\n"


def test_cmake_consumer(prefix: Path, tmp_path: Path, arena_name: str) -> None:
    run("cmake", "-G", "Ninja", "-S", HERE / "consumer", "-B", tmp_path,
        f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "consumer", arena_name) == f"{importlib.metadata.version('kvshm')}\n"


def test_pkg_config_file_in_a_deep_libdir(tmp_path: Path) -> None:
    """Debian's lib/x86_64-linux-gnu: the way back to the prefix is one step longer."""
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", HERE.parents[1], "-B", build, "-DKVSHM_TESTS=OFF",
        f"-DCMAKE_INSTALL_PREFIX={tmp_path}", "-DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu")
    folder = tmp_path / "lib" / "x86_64-linux-gnu" / "pkgconfig"
    folder.mkdir(parents=True)
    (folder / "kvshm.pc").write_text((build / "cpp" / "kvshm.pc").read_text())
    env = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    includes = run("/usr/bin/pkg-config", "--variable=includedir", "kvshm", env=env).strip()
    assert Path(includes).resolve() == (tmp_path / "include").resolve()
