# SPDX-License-Identifier: Apache-2.0
"""What the library shows to the dynamic linker: the header's functions, and nothing else."""
import re
import subprocess
from pathlib import Path

from support import headers


def tool(*command: object) -> list[str]:
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True,
                          check=True, timeout=60)
    return done.stdout.splitlines()


def declared() -> set[str]:
    return set(re.findall(r"^KVSHM_API .*?\b(kvshm_\w+)\(", headers.text(), re.MULTILINE))


def test_exactly_the_functions_of_the_header_are_exported(prefix: Path) -> None:
    exported = {line.split()[-1] for line in tool("nm", "-D", "--defined-only",
                                                  prefix / "lib" / "libkvshm.so.0")}
    exported.discard("KVSHM_0")    # the version node itself
    assert {name.partition("@@")[2] for name in exported} == {"KVSHM_0"}
    assert {name.partition("@@")[0] for name in exported} == declared()


def test_soname_and_needs(prefix: Path) -> None:
    """liburing and libsodium are inside: a user installs neither."""
    dynamic = "\n".join(tool("readelf", "-d", prefix / "lib" / "libkvshm.so.0"))
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libkvshm.so.0"]
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1",
                      "ld-linux-x86-64.so.2"}
    assert "TEXTREL" not in dynamic


def test_modules_share_the_one_library(package_prefix: Path) -> None:
    """Every compiled module finds libkvshm by its own place: none carries a copy."""
    modules = [path for path in package_prefix.rglob("*.so") if path.name != "libkvshm.so"]
    assert any(path.name.startswith("_capi.") for path in modules)
    for module in modules:
        dynamic = "\n".join(tool("readelf", "-d", module))
        if "libkvshm" not in dynamic:
            # Reads tier files by itself; exact references need no arena.
            assert module.name.startswith(("_uring.", "exact."))
            continue
        way = re.findall(r"\((?:RUNPATH|RPATH)\).*\[\$ORIGIN/(.*)\]", dynamic)
        assert len(way) == 1, f"{module}: {way}"
        assert (module.parent / way[0] / "libkvshm.so.0").resolve().exists()
