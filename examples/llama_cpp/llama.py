# SPDX-License-Identifier: Apache-2.0
"""As much of llama.cpp's C API as it takes to compute, save and restore a sequence, by ctypes.

The library is the one inside the package xllamacpp. Structs that llama.h passes by value are only
handed on here, each as the last argument, so a block larger than any of them stands for all: what
they consist of differs from version to version.
"""
import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

VERSION = "xllamacpp " + importlib.metadata.version("xllamacpp")
BATCH = 512
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32


class _Struct(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 128)]


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result, arguments
    "llama_log_set": (None, _Log, _pointer),
    "llama_backend_init": (None,),
    "llama_model_default_params": (_Struct,),
    "llama_model_load_from_file": (_pointer, ctypes.c_char_p, _Struct),
    "llama_model_free": (None, _pointer),
    "llama_model_get_vocab": (_pointer, _pointer),
    "llama_vocab_n_tokens": (_int, _pointer),
    "llama_context_default_params": (_Struct,),
    "llama_init_from_model": (_pointer, _pointer, _Struct),
    "llama_free": (None, _pointer),
    "llama_n_ctx": (ctypes.c_uint32, _pointer),
    "llama_set_n_threads": (None, _pointer, _int, _int),
    "llama_batch_get_one": (_Struct, _pointer, _int),
    "llama_decode": (_int, _pointer, _Struct),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), _pointer, _int),
    "llama_state_seq_get_size": (_size, _pointer, _int),
    "llama_state_seq_get_data": (_size, _pointer, _pointer, _size, _int),
    "llama_state_seq_set_data": (_size, _pointer, _pointer, _size, _int),
}


def _load() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("xllamacpp is not installed")
    lib = ctypes.CDLL(str(next(Path(spec.submodule_search_locations[0]).glob("xllamacpp*.so"))))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


_silent = _Log(lambda level, text, user: None)


class Llama:
    """One model with one sequence (number 0)."""

    def __init__(self, path: Path, context: int, threads: int = 2) -> None:
        self._lib = _load()
        self._lib.llama_log_set(_silent, None)
        self._lib.llama_backend_init()
        self._model = self._lib.llama_model_load_from_file(
            str(path).encode(), self._lib.llama_model_default_params())
        if not self._model:
            raise OSError(f"llama.cpp cannot load {path}")
        params = self._lib.llama_context_default_params()
        ctypes.cast(ctypes.byref(params), ctypes.POINTER(ctypes.c_uint32))[0] = context  # n_ctx
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context or self._lib.llama_n_ctx(self._context) < context:
            raise OSError(f"no context of {context} tokens")
        self._lib.llama_set_n_threads(self._context, threads, threads)
        vocab = self._lib.llama_model_get_vocab(self._model)
        self.vocabulary: int = self._lib.llama_vocab_n_tokens(vocab)

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens to the sequence; the logits of what comes next."""
        for start in range(0, len(tokens), BATCH):
            part = np.ascontiguousarray(tokens[start:start + BATCH], np.int32)
            batch = self._lib.llama_batch_get_one(part.ctypes.data, len(part))
            rc = self._lib.llama_decode(self._context, batch)
            if rc != 0:
                raise RuntimeError(f"llama_decode: {rc}")
        found = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(found, (self.vocabulary,)).copy()

    def state_bytes(self) -> int:
        """Size of the sequence's state."""
        return int(self._lib.llama_state_seq_get_size(self._context, 0))

    def save(self, to: np.ndarray) -> None:
        """Write the sequence's state into memory."""
        written = self._lib.llama_state_seq_get_data(self._context, to.ctypes.data, to.nbytes, 0)
        if written != to.nbytes:
            raise RuntimeError(f"{written} of {to.nbytes} bytes of state were written")

    def restore(self, state: np.ndarray) -> None:
        """Make the sequence what it was when this was saved."""
        read = self._lib.llama_state_seq_set_data(
            self._context, state.ctypes.data, state.nbytes, 0)
        if read != state.nbytes:
            raise RuntimeError(f"{read} of {state.nbytes} bytes of state were read")

    def close(self) -> None:
        """Give the context and the model back."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)
