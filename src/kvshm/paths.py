# SPDX-License-Identifier: Apache-2.0
"""Where the C header, the library and their pkg-config file lie in the installed package.

For build scripts of programs that use kvshm from C, C++ or Cython. Imports nothing compiled.
"""
import importlib.util
import os


def _root() -> str:
    # An editable install keeps the compiled part apart from the sources: a package may have
    # several folders.
    spec = importlib.util.find_spec("kvshm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.path.isfile(os.path.join(folder, "lib", "libkvshm.so.0")):
            return folder
    raise FileNotFoundError("this kvshm is not an installed package: it has no lib/libkvshm.so.0")


def include_dir() -> str:
    """For -I: holds kvshm.h."""
    return os.path.join(_root(), "include")


def library_dir() -> str:
    """For -L and -Wl,-rpath: holds libkvshm.so.0."""
    return os.path.join(_root(), "lib")


def pkg_config_dir() -> str:
    """For PKG_CONFIG_PATH: holds kvshm.pc."""
    return os.path.join(_root(), "lib", "pkgconfig")
