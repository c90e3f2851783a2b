"""The libraries that compute products, by the names that tables call them; torch's is always there.

Nothing is imported until a library is the way to take, or is to be measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from quantdock_cuda import block_libraries, library
from quantdock_cuda.library import Layer
from quantdock_triton.recording import spoil

LIBRARY = "library"  # torch's own product; of weights alone, after widening them
DEEP_GEMM = "deep_gemm"
FLASHINFER = "flashinfer"
# (codes of x, its scale, weight, its scale, bias, M, dtype) to the result [M, N].
Product = Callable[[Tensor, Tensor, Tensor, Tensor, "Tensor | None", int, torch.dtype], Tensor]

_log = logging.getLogger("quantdock.cuda.libraries")
_left: set[str] = set()  # that failed when they were called


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A module that may be installed, what of it is asked for, and for which layers."""

    module: str
    make: Callable[[], Product]
    takes: Callable[[Layer], bool]


LIBRARIES = MappingProxyType(
    {
        LIBRARY: Library(module="torch", make=lambda: library.product, takes=library.takes),
        DEEP_GEMM: Library(
            module="deep_gemm", make=block_libraries.DeepGemm, takes=block_libraries.takes
        ),
        FLASHINFER: Library(
            module="flashinfer", make=block_libraries.FlashInfer, takes=block_libraries.takes
        ),
    }
)


@lru_cache(maxsize=8)
def is_installed(name: str) -> bool:
    """Return whether the module of a library is installed; it is not imported."""
    return find_spec(LIBRARIES[name].module) is not None


@lru_cache(maxsize=8)
def load(name: str) -> Product | None:
    """Return a library's product; None, and a warning, where it cannot be imported."""
    try:
        made = LIBRARIES[name].make()
        return made if name == LIBRARY else partial(_launched_elsewhere, made)
    except Exception as error:  # what a library of others raises is not known
        _warn(name, error)
        return None


def _launched_elsewhere(product: Product, *operands: Any) -> Tensor:
    """Return a product that a record of the call cannot hold, as it launches past torch."""
    spoil()
    return product(*operands)


def leave(name: str, error: Exception) -> None:
    """Use a library no longer, which failed when it was called; a warning says so, once."""
    if name not in _left:
        _left.add(name)
        _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    text = " ".join(str(error).split())
    _log.warning("%s is not used: %s: %s", LIBRARIES[name].module, type(error).__name__, text)


def product_for(name: str, layer: Layer) -> Product | None:
    """Return the product of a library; None where it is not there or takes no such operands."""
    usable = name not in _left and is_installed(name) and LIBRARIES[name].takes(layer)
    return load(name) if usable else None
