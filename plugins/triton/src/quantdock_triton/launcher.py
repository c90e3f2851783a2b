"""Launching a Triton kernel that is known to be compiled, without Triton's look at every argument.

Triton specializes a kernel for each argument's dtype, alignment and some values, and finds that out
anew at each launch. Our callers know what of it can change, so a small key of theirs takes the
place: a launch costs a few microseconds less, and two launches make a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from quantdock_triton import recording

ALIGNMENT = 16  # bytes; Triton reads wider where a pointer has it
# A sum takes one step with its product. Kernels that must not fuse them say so by their operations.
FUSED = {"enable_fp_fusion": True}
MOST_RUNS = 256  # keys and grids that a launcher remembers


class Launcher:
    """One Triton kernel with fixed constants and options."""

    def __init__(self, kernel: Any, constants: tuple[object, ...], **options: int) -> None:
        self._kernel = kernel
        self._constants = constants  # values of the last parameters, in their order
        self._options = FUSED | options  # num_warps, num_stages
        self._compiled: dict[Hashable, Any] = {}
        self._runs: dict[Hashable, Callable[..., None]] = {}  # for a key and a grid

    def __call__(self, key: Hashable, grid: tuple[int, int], *arguments: object) -> None:
        """Run the kernel in a grid of so many programs.

        Args:
            key: differs wherever the arguments' dtypes, alignment, device or specialized integers
                differ.
        """
        whole = (*grid, 1)
        compiled = self._compiled.get(key)
        run = self._runs.get((key, grid))
        if run is not None:
            run(*arguments, *self._constants)
        elif compiled is not None:
            compiled[whole](*arguments, *self._constants)
            self._keep((key, grid), compiled[whole])
        else:
            compiled = self._kernel[whole](*arguments, *self._constants, **self._options)
            if compiled is not None:  # the interpreter compiles nothing
                self._compiled[key] = compiled
        recording.launched(compiled, whole, (*arguments, *self._constants))

    def _keep(self, place: Hashable, run: Callable[..., None]) -> None:
        if len(self._runs) >= MOST_RUNS:
            self._runs.clear()
        self._runs[place] = run


def launch_options(early: bool, warps: int) -> dict[str, int]:
    """Return the options of a kernel with so many warps that starts early, or does not."""
    return {"num_warps": warps} | ({"launch_pdl": True} if early else {})


def is_aligned(tensor: Tensor | None) -> bool:
    """Return whether ``tensor`` starts where Triton can read it in whole vectors."""
    return tensor is None or tensor.data_ptr() % ALIGNMENT == 0
