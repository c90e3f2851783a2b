"""Activations to codes and scales on a device, equal to ``quantdock.numerics.quantize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import torch_dtype
from quantdock_triton import quantize_kernel as kernels
from quantdock_triton.launcher import Launcher, is_aligned, launch_options

TILE = 4096  # values a program works on, unless one row has more
WIDTH = 1024  # columns of it, where a scale does not ask for more
# A row with one scale is held in registers, in pieces of eight columns a thread:
LONG = 2048  # from more columns on; of shorter rows several go to a program
VECTOR = 8
WIDE_ROW = 20480  # columns from which on twice the threads hold them
MOST_PIECES = 16
MANY = 256  # rows that keep the device busy in any way
ENOUGH = 4  # rows that make a tile as it is meant to be
ONE_ROW = -1  # stands for one: its scale is that of the whole tensor
VALUES_PER_THREAD = 16
ROW_MULTIPLE = 4  # memory is there for rows up to it: libraries read whole vectors of scales
PARTS = 264  # programs that look for the largest magnitude of a whole tensor; 2 a multiprocessor
PROGRAMS = 1056  # that quantize it then
EARLY = 256  # programs up to which those start while it is looked for, as all find room then
EARLY_GATES = 128  # likewise where they compute gates, which takes more registers
_WARP = 32
_FRACTION_BITS = 23  # of f32
# (x, codes, scales, static scales, M), of which codes and scales are written.
Run = Callable[[Tensor, Tensor, Tensor, "Tensor | None", int], None]


def _carry(spec: QuantSpec) -> int:
    """Return what is added to the bits of a scale that is cut to a power of two; -1: it is not."""
    element = ELEMENTS[spec.element]
    return {
        "exact": -1,
        "ceil": (1 << _FRACTION_BITS) - 1,
        "floor": 0,
        "even": 1 << (_FRACTION_BITS - 1 - element.fraction_bits),
    }[spec.rounding]


def _divisor(spec: QuantSpec) -> float:
    """Return what the largest magnitude is divided by."""
    largest = ELEMENTS[spec.element].largest
    if spec.rounding in ("floor", "even"):
        return float(1 << (int(largest).bit_length() - 1))
    return largest


def power_above(number: int) -> int:
    """Return the smallest power of two that is not below ``number``."""
    return 1 << max(number - 1, 0).bit_length()


class Encoding:
    """What kernels must know of a spec for inputs of K columns, and the memory of its results."""

    def __init__(self, spec: QuantSpec, k: int, ptx: bool, row_major: bool = False) -> None:
        element = ELEMENTS[spec.element]
        self.k, self._row_major = k, row_major
        self.dtype = torch_dtype(element.storage)
        self.range = (element.lowest, element.largest, ptx)
        self.scale = (_divisor(spec), _carry(spec))
        self.is_whole = spec.granularity == "tensor"
        self.size = k if spec.cols is None else min(spec.cols, k)
        self.groups = -(-k // self.size)

    def empty(self, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return memory for codes and scales of m rows; see Quantizer."""
        rows = -(-m // ROW_MULTIPLE) * ROW_MULTIPLE
        codes = torch.empty((rows, self.k), dtype=self.dtype, device=device)
        sizes, strides = ((1, 1), (1, 1)) if self.is_whole else ((rows, self.groups), (1, rows))
        if self._row_major:
            strides = (sizes[1], 1)
        return codes, torch.empty_strided(sizes, strides, dtype=torch.float32, device=device)


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
    ) -> None:
        self.k, self.num_static, self._silu, self._early = k, num_static, silu, early
        self._encoding = Encoding(spec, k, ptx, row_major)
        self._runs: dict[int, Run] = {}  # by how many rows there are: one, some, enough, many

    def __call__(self, x: Tensor, input_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x`` and their scales.

        Shapes:
            x: float [M, K], M >= 1; columns side by side; [M, 2K] where silu is computed.
            input_scale: f32 [num_static], folded to the largest; None where scales are computed.
            Returns codes [M + 0..3, K], of which M rows are written, and f32 scales: [1, 1] of a
            whole tensor; else as many rows and a column for each group, the rows side by side, as
            products read them, or the columns.
        """
        m = x.shape[0]
        codes, scale = self._encoding.empty(m, x.device)
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
        if self._encoding.is_whole and regime != ONE_ROW:
            return self._whole(regime)
        if self._encoding.groups > 1 or self.k <= LONG:
            return self._tiles(regime)
        return self._rows() if pieces_of(self.k)[1] <= MOST_PIECES else self._long()

    def _tiles(self, regime: int) -> Run:
        encoding = self._encoding
        width = power_above(encoding.size)
        groups = min(max(WIDTH // width, 1), power_above(encoding.groups))
        height = _height(regime, width * groups)
        if regime == 2 and encoding.groups > 1 and not self._silu:
            height *= 2
        constants = (encoding.size, height, groups, width, self._silu, *encoding.range,
                     *encoding.scale, self._early)  # fmt: skip
        values = height * groups * width
        launch = _launcher(kernels.quantize_tiles, values, constants, self._early)
        k, num_groups, across = self.k, encoding.groups, -(-encoding.groups // groups)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            sizes = (m, k, num_groups, stride, k, *scale.stride())
            launch(key_of(x, stride), (-(-m // height) * across, 1), x, codes, scale, *sizes)

        return run

    def _rows(self) -> Run:
        k, encoding = self.k, self._encoding
        warps, num_pieces = pieces_of(k)
        constants = (warps * _WARP * VECTOR, num_pieces, self._silu, *encoding.range,
                     *encoding.scale, self._early)  # fmt: skip
        launch = Launcher(kernels.quantize_rows, constants, **launch_options(self._early, warps))

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            launch(key_of(x, stride), (m, 1), x, codes, scale, k, stride, k)

        return run

    def _long(self) -> Run:
        k, width, encoding = self.k, 2 * TILE, self._encoding
        constants = (width, self._silu, *encoding.range, *encoding.scale)
        launch = _launcher(kernels.quantize_long_row, width, constants)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            launch(key_of(x, stride), (m, 1), x, codes, scale, k, stride, k)

        return run

    def _static(self, regime: int) -> Run:
        height, num, k = _height(regime, WIDTH), self.num_static, self.k
        constants = (num, power_above(num), height, WIDTH, self._silu, *self._encoding.range,
                     self._early)  # fmt: skip
        launch = _launcher(kernels.quantize_static, height * WIDTH, constants, self._early)
        across = -(-k // WIDTH)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            key = (*key_of(x, stride), is_aligned(given))
            grid = (-(-m // height) * across, 1)
            launch(key, grid, x, codes, given, scale, m, k, stride, k)

        return run

    def _whole(self, regime: int) -> Run:
        height, k = _height(regime, WIDTH), self.k
        most, across = 2 * height, -(-k // WIDTH)
        most_early = (EARLY_GATES if self._silu else EARLY) if self._early and regime < 2 else 0
        kinds = {early: self._whole_launchers(height, early) for early in {False, most_early > 0}}

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            key, blocks = key_of(x, stride), -(-m // height) * across
            is_early = blocks <= most_early
            look, launch = kinds[is_early]
            num_parts = min(-(-m // most) * across, PARTS)
            parts = torch.empty(num_parts, dtype=torch.float32, device=x.device)
            look(key, (num_parts, 1), x, parts, m, k, stride)
            grid = (blocks if is_early else min(blocks, PROGRAMS), 1)
            launch(key, grid, x, codes, parts, num_parts, scale, m, k, stride, k)

        return run

    def _whole_launchers(self, height: int, early: bool) -> tuple[Launcher, Launcher]:
        """Return what looks for the largest magnitude, and what quantizes."""
        encoding, most = self._encoding, 2 * height
        options = (self._silu, encoding.range[-1], early)
        constants = (power_above(PARTS), height, WIDTH, self._silu, *encoding.range,
                     *encoding.scale, early)  # fmt: skip
        return (
            _launcher(kernels.largest_of_parts, most * WIDTH, (most, WIDTH, *options), early),
            _launcher(kernels.quantize_whole, height * WIDTH, constants, early),
        )


@lru_cache(maxsize=4096)
def quantizer(
    spec: QuantSpec,
    k: int,
    num_static: int = 0,
    ptx: bool = False,
    silu: bool = False,
    row_major: bool = False,
    early: bool = False,
) -> Quantizer:
    """Return what quantizes rows of ``k`` values by ``spec``.

    Args:
        num_static: how many static scales are given.
        ptx: the device converts to the element by itself, as NVIDIA's do.
        silu: x has gate and up side by side; silu(gate) * up is quantized.
        row_major: the scales of a row lie side by side, as some products of others read them.
        early: start while the kernel before ends, and let the one after do so too, but for rows
            that are too long for registers; NVIDIA's devices can from sm_90 on.
    """
    return Quantizer(spec, k, num_static, ptx, silu, row_major, early)


def pieces_of(k: int) -> tuple[int, int]:
    """Return how many warps hold a row of k columns, and in how many pieces."""
    warps = 16 if k > WIDE_ROW else 8
    return warps, -(-k // (warps * _WARP * VECTOR))


def key_of(x: Tensor, stride: int) -> tuple[object, ...]:
    """Return what of ``x`` a compiled kernel depends on, besides its constants."""
    return x.get_device(), x.dtype, is_aligned(x), stride % 16, stride == 1


def _launcher(
    kernel: object, values: int, constants: tuple[object, ...], early: bool = False
) -> Launcher:
    """Return the launcher of a kernel whose programs work on so many values each."""
    threads = min(max(values // VALUES_PER_THREAD, 4 * _WARP), 32 * _WARP)
    return Launcher(kernel, constants, **launch_options(early, threads // _WARP))


def _height(regime: int, width: int) -> int:
    """Return how many rows a program works on: few rows go to as many programs as they can."""
    return max(TILE // width, 1) if regime > 0 else 1
