"""Launching ``packed_widen_kernel``: what is fixed for a layer is worked out once."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.packed_layout import ROWS, Packing
from quantdock_triton.packed_matmul import PackedWeight
from quantdock_triton.packed_widen_kernel import widen_blocks


class WidenBlocks:
    """Rows of a weight of fp4_e2m1, of K columns, as floats; made by ``widen``."""

    def __init__(self, packing: Packing, k: int) -> None:
        self.k = k
        self._steps = packing.blocks(1, k)[1]
        constants = (packing.plane, packing.pieces, packing.scale == "e8m0", ROWS)
        self._launcher = Launcher(widen_blocks, constants, num_warps=8, num_stages=1)

    def __call__(self, weight: PackedWeight, out: Tensor) -> None:
        """Write rows ``first`` to ``last`` to ``out`` [rows, K], contiguous; there is one."""
        words, stored = weight.words, weight.scale_words
        assert stored is not None, "codes that are floats have bytes of scales"
        self._launcher(
            (words.get_device(), out.dtype, is_aligned(out), is_aligned(words),
             is_aligned(stored), is_aligned(weight.scale)),
            (-(-(weight.last - weight.first) // ROWS), self._steps),
            words, stored, weight.scale, out, weight.first, weight.last, self.k, self._steps,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def widen(packing: Packing, k: int) -> WidenBlocks:
    """Return what makes floats of weights of ``k`` columns."""
    return WidenBlocks(packing, k)
