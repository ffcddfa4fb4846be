# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of kvshm._capi: the whole public header as a cffi module.

Run by CMake: ``_capi_build.py OUTPUT.c include/kvshm.h COMPILER``. The header, with its parts
beside it, is the only source: the compiler's preprocessor expands its field lists and drops what
cffi cannot read, and the numeric macros are declared from their names.
"""
import re
import subprocess
import sys
from pathlib import Path

import cffi


def declarations(header: str, compiler: str) -> str:
    """The header as cffi takes it: no directives, no attributes, numeric macros by name."""
    folder = Path(header).parent
    parts = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.h")))
    constants = re.findall(r"^#define (KVSHM_[A-Z0-9_]+)[ \t]+[0-9]\w*", parts, re.MULTILINE)
    body = re.sub(r"^#include <.*$", "", Path(header).read_text(encoding="utf-8"),
                  flags=re.MULTILINE)
    expanded = subprocess.run(
        [compiler, "-E", "-P", "-xc", "-U__GNUC__", f"-I{folder}", "-"],
        input=body, capture_output=True, text=True, check=True, timeout=60).stdout
    return "".join(f"#define {name} ...\n" for name in constants) + expanded


def main(output: str, header: str, compiler: str) -> None:
    ffi = cffi.FFI()
    ffi.cdef(declarations(header, compiler))
    ffi.set_source("kvshm._capi", '#include "kvshm.h"\n')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
