"""One computed scale for several rows, in one launch or in two."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock_triton import quantize_kernel as kernels
from quantdock_triton.encoding import Encoding
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.programs import (
    ENOUGH,
    MANY,
    WIDTH,
    height_of,
    key_of,
    launcher_of,
    power_above,
)

PARTS = 264  # programs that look for the largest magnitude of a whole tensor; 2 a multiprocessor
PROGRAMS = 1056  # that quantize it then
EARLY = 256  # programs up to which those start while it is looked for, as all find room then
EARLY_GATES = 128  # likewise where they compute gates, which takes more registers
SOME = 256  # rows up to which programs wait for each other, and the host for one launch less
SLOTS = 256  # programs that may wait for each other, at most
NUM_SLOTS = 2 * SLOTS + 4  # int32 that they take, aligned
MOST_HELD = 1 << 13  # values that a program holds meanwhile; two launches took less time for more


class WholeQuantizer:
    """Quantizes several rows of K values with the one scale that they give; see Quantizer.

    Args:
        together: programs that are sure to run at once.
    """

    def __init__(self, encoding: Encoding, silu: bool, early: bool, together: int) -> None:
        self._encoding, self._silu, self._early = encoding, silu, early
        self._together, self._across = min(together, SLOTS), -(-encoding.k // WIDTH)
        self._launchers: dict[tuple[str, int, bool], Launcher] = {}

    def __call__(
        self, x: Tensor, codes: Tensor, scale: Tensor, m: int, slots: Tensor | None
    ) -> None:
        """Write codes and the scale of x, float [M, K] or [M, 2K], where M > 1."""
        rows = 0 if slots is None else self._rows(m)
        if not rows:
            self._in_two(x, codes, scale, m)
            return
        stride, k = x.stride(0), self._encoding.k
        constants = (rows, WIDTH, SLOTS, self._silu, *self._encoding.range, *self._encoding.scale)
        launch = self._launcher("quantize_together", rows, constants, self._early)
        grid = (-(-m // rows) * self._across, 1)
        launch(
            (*key_of(x, stride), is_aligned(slots)), grid, x, codes, slots, scale, m, k, stride, k
        )

    def _rows(self, m: int) -> int:
        """Return how many rows each of the programs holds that wait for each other; 0: none do."""
        if m > SOME or not self._together // self._across:
            return 0
        rows = power_above(-(-m // (self._together // self._across)))
        return rows if rows * WIDTH <= MOST_HELD else 0

    def _in_two(self, x: Tensor, codes: Tensor, scale: Tensor, m: int) -> None:
        """Look for the largest magnitude in one launch, and quantize in another."""
        height, stride, k = height_of(m >= ENOUGH, WIDTH), x.stride(0), self._encoding.k
        blocks = -(-m // height) * self._across
        most_early = EARLY_GATES if self._silu else EARLY
        early = self._early and m < MANY and blocks <= most_early
        num_parts = min(-(-m // (2 * height)) * self._across, PARTS)
        parts = torch.empty(num_parts, dtype=torch.float32, device=x.device)
        options = (WIDTH, self._silu)
        look = self._launcher(
            "largest_of_parts", 2 * height, (2 * height, *options, self._encoding.range[-1]), early
        )
        look(key_of(x, stride), (num_parts, 1), x, parts, m, k, stride)
        constants = (power_above(PARTS), height, *options, *self._encoding.range,
                     *self._encoding.scale)  # fmt: skip
        launch = self._launcher("quantize_whole", height, constants, early)
        grid = (blocks if early else min(blocks, PROGRAMS), 1)
        launch(key_of(x, stride), grid, x, codes, parts, num_parts, scale, m, k, stride, k)

    def _launcher(
        self, kernel: str, rows: int, constants: tuple[object, ...], early: bool
    ) -> Launcher:
        """Return the launcher of a kernel whose programs take so many rows."""
        made = self._launchers.get((kernel, rows, early))
        if made is None:
            made = launcher_of(getattr(kernels, kernel), rows * WIDTH, (*constants, early), early)
            self._launchers[kernel, rows, early] = made
        return made
