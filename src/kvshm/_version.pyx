# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Header and library must be of one version: structs are laid out by the one, read by the other."""
from kvshm.ckvshm cimport KVSHM_VERSION, kvshm_version


def check_version():
    """The version, or ImportError where a libkvshm of another version was found."""
    cdef bytes built = KVSHM_VERSION
    cdef bytes found = kvshm_version()
    if built != found:
        raise ImportError(f"kvshm was built with version {built.decode()} of kvshm.h, but the "
                          f"library that was loaded is {found.decode()}: reinstall kvshm")
    return found.decode()
