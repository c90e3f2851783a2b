"""Activations to codes and scales on a device, equal to ``quantdock.numerics.quantize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock_triton import quantize_kernel as kernels
from quantdock_triton.encoding import Encoding
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.programs import (
    ENOUGH,
    MANY,
    TILE,
    WARP,
    WIDTH,
    height_of,
    key_of,
    launcher_of,
    power_above,
)
from quantdock_triton.quantize_whole import WholeQuantizer

# A row with one scale is held in registers, in pieces of eight columns a thread:
LONG = 2048  # from more columns on; of shorter rows several go to a program
VECTOR = 8
WIDE_ROW = 20480  # columns from which on twice the threads hold them
MOST_PIECES = 16
ONE_ROW = -1  # stands for one: its scale is that of the whole tensor
# (x, codes, scales, static scales, M), of which codes and scales are written.
Run = Callable[[Tensor, Tensor, Tensor, "Tensor | None", int], None]


class Quantizer:
    """Quantizes rows of K values by one spec; made once for each by ``quantizer``."""

    def __init__(
        self,
        spec: QuantSpec,
        k: int,
        num_static: int = 0,
        ptx: bool = False,
        silu: bool = False,
        row_major: bool = False,
        early: bool = False,
        together: int = 0,
    ) -> None:
        self.k, self.num_static, self._silu, self._early = k, num_static, silu, early
        self._encoding = Encoding(spec, k, ptx, row_major)
        self._runs: dict[int, Run] = {}  # by how many rows there are: one, some, enough, many
        self._whole: WholeQuantizer | None = None
        if self._encoding.is_whole and not num_static:
            self._whole = WholeQuantizer(self._encoding, silu, early, together)

    def __call__(
        self, x: Tensor, input_scale: Tensor | None, slots: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x`` and their scales.

        Shapes:
            x: float [M, K], M >= 1; columns side by side; [M, 2K] where silu is computed.
            input_scale: f32 [num_static], folded to the largest; None where scales are computed.
            slots: int32 [NUM_SLOTS], zeros at first, of this stream alone, by which programs that
            wait for each other tell what they found. None: none do.
            Returns codes [M + 0..3, K], of which M rows are written, and f32 scales: [1, 1] of a
            whole tensor; else as many rows and a column for each group, the rows side by side, as
            products read them, or the columns.
        """
        m = x.shape[0]
        codes, scale = self._encoding.empty(m, x.device)
        if self._whole is not None and m > 1:
            self._whole(x, codes, scale, m, slots)
            return codes, scale
        regime = (m >= ENOUGH) + (m >= MANY) if m > 1 else ONE_ROW
        run = self._runs.get(regime)
        if run is None:
            run = self._runs[regime] = self._prepared(regime)
        run(x, codes, scale, input_scale, m)
        return codes, scale

    def _prepared(self, regime: int) -> Run:
        """Return what quantizes so many rows."""
        if self.num_static:
            return self._static(regime)
        if self._encoding.groups > 1 or self.k <= LONG:
            return self._tiles(regime)
        return self._rows() if pieces_of(self.k)[1] <= MOST_PIECES else self._long()

    def _tiles(self, regime: int) -> Run:
        encoding = self._encoding
        width = power_above(encoding.size)
        groups = min(max(WIDTH // width, 1), power_above(encoding.groups))
        height = height_of(regime, width * groups)
        if regime == 2 and encoding.groups > 1 and not self._silu:
            height *= 2
        constants = (encoding.size, height, groups, width, self._silu, *encoding.range,
                     *encoding.scale, self._early)  # fmt: skip
        values = height * groups * width
        launch = launcher_of(kernels.quantize_tiles, values, constants, self._early)
        k, num_groups, across = self.k, encoding.groups, -(-encoding.groups // groups)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            sizes = (m, k, num_groups, stride, k, *scale.stride())
            launch(key_of(x, stride), (-(-m // height) * across, 1), x, codes, scale, *sizes)

        return run

    def _rows(self) -> Run:
        k, encoding = self.k, self._encoding
        warps, num_pieces = pieces_of(k)
        constants = (warps * WARP * VECTOR, num_pieces, self._silu, *encoding.range,
                     *encoding.scale, self._early)  # fmt: skip
        launch = Launcher(kernels.quantize_rows, constants, **launch_options(self._early, warps))

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            launch(key_of(x, stride), (m, 1), x, codes, scale, k, stride, k)

        return run

    def _long(self) -> Run:
        k, width, encoding = self.k, 2 * TILE, self._encoding
        constants = (width, self._silu, *encoding.range, *encoding.scale)
        launch = launcher_of(kernels.quantize_long_row, width, constants)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            launch(key_of(x, stride), (m, 1), x, codes, scale, k, stride, k)

        return run

    def _static(self, regime: int) -> Run:
        height, num, k = height_of(regime, WIDTH), self.num_static, self.k
        constants = (num, power_above(num), height, WIDTH, self._silu, *self._encoding.range,
                     self._early)  # fmt: skip
        launch = launcher_of(kernels.quantize_static, height * WIDTH, constants, self._early)
        across = -(-k // WIDTH)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            key = (*key_of(x, stride), is_aligned(given))
            grid = (-(-m // height) * across, 1)
            launch(key, grid, x, codes, given, scale, m, k, stride, k)

        return run


@lru_cache(maxsize=4096)
def quantizer(
    spec: QuantSpec,
    k: int,
    num_static: int = 0,
    ptx: bool = False,
    silu: bool = False,
    row_major: bool = False,
    early: bool = False,
    together: int = 0,
) -> Quantizer:
    """Return what quantizes rows of ``k`` values by ``spec``.

    Args:
        num_static: how many static scales are given.
        ptx: the device converts to the element by itself, as NVIDIA's do.
        silu: x has gate and up side by side; silu(gate) * up is quantized.
        row_major: the scales of a row lie side by side, as some products of others read them.
        early: start while the kernel before ends, and let the one after do so too, but for rows
            that are too long for registers; NVIDIA's devices can from sm_90 on.
        together: programs that are sure to run at once, however large: one a multiprocessor. They
            may wait for each other; 0: none may.
    """
    return Quantizer(spec, k, num_static, ptx, silu, row_major, early, together)


def pieces_of(k: int) -> tuple[int, int]:
    """Return how many warps hold a row of k columns, and in how many pieces."""
    warps = 16 if k > WIDE_ROW else 8
    return warps, -(-k // (warps * WARP * VECTOR))
