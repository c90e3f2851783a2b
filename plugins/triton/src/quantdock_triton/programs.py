"""How much a program that quantizes works on, and what launches it."""

from __future__ import annotations

from torch import Tensor

from quantdock_triton.launcher import Launcher, is_aligned, launch_options

TILE = 4096  # values a program works on, unless one row has more
WIDTH = 1024  # columns of it, where a scale does not ask for more
WARP = 32
VALUES_PER_THREAD = 16
ENOUGH = 4  # rows that make a tile as it is meant to be
MANY = 256  # rows that keep the device busy in any way


def power_above(number: int) -> int:
    """Return the smallest power of two that is not below ``number``."""
    return 1 << max(number - 1, 0).bit_length()


def key_of(x: Tensor, stride: int) -> tuple[object, ...]:
    """Return what of ``x`` a compiled kernel depends on, besides its constants."""
    return x.get_device(), x.dtype, is_aligned(x), stride % 16, stride == 1


def launcher_of(
    kernel: object, values: int, constants: tuple[object, ...], early: bool = False
) -> Launcher:
    """Return the launcher of a kernel whose programs work on so many values each."""
    threads = min(max(values // VALUES_PER_THREAD, 4 * WARP), 32 * WARP)
    return Launcher(kernel, constants, **launch_options(early, threads // WARP))


def height_of(regime: int, width: int) -> int:
    """Return how many rows a program works on: few rows go to as many programs as they can."""
    return max(TILE // width, 1) if regime > 0 else 1
