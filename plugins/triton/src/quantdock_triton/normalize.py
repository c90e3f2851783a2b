"""Root mean square norms whose results are codes, on a device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock_triton.encoding import Encoding
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.normalize_kernel import normalize_rows
from quantdock_triton.programs import WARP, key_of, power_above
from quantdock_triton.quantize import MOST_PIECES, VECTOR, quantizer

FEW_WARPS = 4  # that hold a row of up to so many columns; twice as many hold a wider one
NARROW_ROW = 8192
SOME_PIECES = 7  # of a row, from which on its scales are stored at once
# Values up to which x leaves the cache before the codes, which it holds then: half of an H200's L2.
# From as many on the weight of wide rows is read late, as many rows are worth more than a wait.
FEW_VALUES = 1 << 25


class Normalizer:
    """Quantizes the norm of rows of K values by one spec; made once for each by ``normalizer``.

    In one step where a row tells its scales, or they are given; else by way of x's dtype.
    """

    def __init__(self, spec: QuantSpec, k: int, num_static: int, ptx: bool, early: bool) -> None:
        encoding = Encoding(spec, k, ptx)
        warps = FEW_WARPS if k <= NARROW_ROW else 2 * FEW_WARPS
        while k > warps * WARP * VECTOR * MOST_PIECES:
            warps *= 2
        width = warps * WARP * VECTOR
        size = 0 if encoding.groups == 1 else encoding.size
        self._is_cut = size > 0 and width % size > 0  # some groups lie in two pieces
        self._is_whole = encoding.is_whole and not num_static
        self._then = quantizer(spec, k, num_static, ptx, early=early)
        self._k, self._encoding, self._most_first = k, encoding, FEW_VALUES * ptx
        num_pieces = -(-k // width)
        on_hopper = ptx and early  # where what follows was measured
        lanes = lanes_of(size, num_pieces, warps) if on_hopper else 0
        is_cut = self._is_cut or num_static > 0
        late_lanes = size // VECTOR if num_pieces <= size // VECTOR and not is_cut else 0
        # By whether x is bf16; others gain in groups of rows of more than eight pieces alone.
        is_wide, is_nearly = warps > FEW_WARPS, lanes > 0 and num_pieces > SOME_PIECES
        self._is_late = {
            False: on_hopper and is_wide and size > 0,
            True: on_hopper and (is_wide or is_nearly),
        }
        sizes = (k, width, num_pieces, size)
        others = (num_static, power_above(num_static), *encoding.range, *encoding.scale)
        options = launch_options(early, warps)
        self._launchers = {  # for x that leaves the cache first, or a weight that is read late
            (first, late): Launcher(
                normalize_rows,
                (*sizes, late_lanes if late else lanes, *others, first, early, late),
                **options,
            )
            for first, late in ((False, False), (True, False), (False, True))
        }

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        input_scale: Tensor | None,
        residual: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of the norm of ``x + residual`` times weight, their scales, and the sum.

        Shapes:
            x, residual: float [M, K], M >= 1; columns side by side. weight: [K]. input_scale: f32
            [num_static]. Codes and scales are those of Quantizer; the sum is [M, K], x if there is
            no residual.
        """
        total = (
            x if residual is None else torch.empty_like(x, memory_format=torch.contiguous_format)
        )
        if self._is_cut or (self._is_whole and x.shape[0] > 1):
            made = torch.empty_like(total, memory_format=torch.contiguous_format)
            self._run(x, residual, total, weight, made, None, None, eps)
            return *self._then(made, input_scale), total
        codes, scale = self._encoding.empty(x.shape[0], x.device)
        self._run(x, residual, total, weight, codes, scale, input_scale, eps)
        return codes, scale, total

    def _run(
        self,
        x: Tensor,
        residual: Tensor | None,
        total: Tensor,
        weight: Tensor,
        codes: Tensor,
        scale: Tensor | None,
        given: Tensor | None,
        eps: float,
    ) -> None:
        k, stride = self._k, x.stride(0)
        added = residual is not None
        other = residual.stride(0) if residual is not None else 0
        key = (
            *key_of(x, stride), weight.dtype, is_aligned(weight),
            None if residual is None else residual.dtype, is_aligned(residual), other % 16,
            other == 1, codes.dtype == x.dtype, is_aligned(given),
        )  # fmt: skip
        late = not added and x.numel() >= FEW_VALUES and self._is_late[x.dtype == torch.bfloat16]
        first = not added and not late and x.numel() <= self._most_first
        self._launchers[first, late](
            key, (x.shape[0], 1),
            x, residual, total if added else None, weight, codes, scale, given, eps,
            self._encoding.groups, stride, other, k, k, codes.shape[0],
        )  # fmt: skip


def lanes_of(size: int, num_pieces: int, warps: int) -> int:
    """Return how many threads hold a group of ``size`` columns, if its scales are stored at once.

    0 where they are not: of few pieces or many warps they are as fast, or faster, piece by piece.
    """
    lanes = size // VECTOR
    return lanes if warps == FEW_WARPS and SOME_PIECES <= num_pieces <= lanes else 0


@lru_cache(maxsize=4096)
def normalizer(
    spec: QuantSpec, k: int, num_static: int = 0, ptx: bool = False, early: bool = False
) -> Normalizer:
    """Return what quantizes the norms of rows of ``k`` values; arguments as for ``quantizer``."""
    return Normalizer(spec, k, num_static, ptx, early)
