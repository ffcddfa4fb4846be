# SPDX-License-Identifier: Apache-2.0
"""The whole C API through cffi: ``from kvshm.capi import ffi, lib``.

For programs that want the C functions themselves from Python, and for tools that must work when
the compiled core does not import. Everything else is better served by ``kvshm.Arena``.
"""
try:
    from kvshm._capi import ffi, lib
except ImportError as error:
    if error.name == "_cffi_backend":
        raise ImportError("kvshm.capi needs the cffi package: pip install 'kvshm[tools]'",
                          name=error.name) from error
    raise

__all__ = ["ffi", "lib"]
