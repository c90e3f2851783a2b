"""Launching a Triton kernel that is known to be compiled, without Triton's look at every argument.

Triton specializes a kernel for each argument's dtype, alignment and some values, and finds that out
anew at each launch. Our callers know what of it can change, so a small key of theirs takes the
place: a launch costs a few microseconds less, and two launches make a layer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor

ALIGNMENT = 16  # bytes; Triton reads wider where a pointer has it


class Launcher:
    """One Triton kernel with fixed constants and options."""

    def __init__(self, kernel: Any, constants: tuple[object, ...], **options: int) -> None:
        self._kernel = kernel
        self._constants = constants  # values of the last parameters, in their order
        self._options = options  # num_warps, num_stages
        self._compiled: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, grid: tuple[int, int, int], *arguments: object) -> None:
        """Run the kernel on ``grid``.

        Args:
            key: differs wherever the arguments' dtypes, alignment, device or specialized integers
                differ.
        """
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *self._constants)
            return
        made = self._kernel[grid](*arguments, *self._constants, **self._options)
        if made is not None:  # the interpreter compiles nothing
            self._compiled[key] = made


def is_aligned(tensor: Tensor | None) -> bool:
    """Return whether ``tensor`` starts where Triton can read it in whole vectors."""
    return tensor is None or tensor.data_ptr() % ALIGNMENT == 0
