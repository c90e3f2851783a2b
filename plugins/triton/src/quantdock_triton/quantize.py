"""Activations to codes and scales on a device, equal to ``quantdock.numerics.quantize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import torch_dtype
from quantdock_triton import quantize_kernel as kernels
from quantdock_triton.launcher import Launcher, is_aligned

TILE = 4096  # values a program works on, unless one row has more
WIDTH = 1024  # columns of it, where a scale does not ask for more
# A row with one scale is held in registers all at once, or read in turns where that is faster:
LONG = 4096  # from more columns on, for many rows
MANY = 256  # rows that keep the device busy in any way
ENOUGH = 4  # rows that make a tile as it is meant to be
MOST_ROWS = 1 << 30  # more than any grid has
WIDEST = 32768  # columns that registers can hold
# Groups of many rows are read ahead by programs that take turns with rows.
AHEAD = 2  # turns
PROGRAMS = 1056  # that fill the device; 8 for each multiprocessor of an H200
VALUES_PER_THREAD = 16
ROW_MULTIPLE = 4  # memory is there for rows up to it: libraries read whole vectors of scales
PARTS = 1024  # programs that look for the largest magnitude of a whole tensor
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


def _power_above(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


class Quantizer:
    """Quantizes rows of K values by one spec; made once for each by ``quantizer``."""

    def __init__(self, spec: QuantSpec, k: int, num_static: int, saturates: bool) -> None:
        element = ELEMENTS[spec.element]
        self.k, self.num_static = k, num_static
        self.dtype = torch_dtype(element.storage)
        self._range = (element.lowest, element.largest, saturates)
        self._scale = (_divisor(spec), _carry(spec))
        self._is_whole = spec.granularity == "tensor"
        self._size = k if spec.cols is None else min(spec.cols, k)
        self._groups = -(-k // self._size)
        self._runs: dict[int, Run] = {}  # by how many rows there are: some, enough, many

    def __call__(self, x: Tensor, input_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x`` and their scales.

        Shapes:
            x: float [M, K], M >= 1; columns side by side. input_scale: f32 [num_static], folded to
            the largest; None where scales are computed. Returns codes [M + 0..3, K], of which M
            rows are written, and f32 scales: [1, 1] of a whole tensor; else as many rows and a
            column for each group, columns side by side.
        """
        m, device = x.shape[0], x.device
        rows = -(-m // ROW_MULTIPLE) * ROW_MULTIPLE
        codes = torch.empty((rows, self.k), dtype=self.dtype, device=device)
        sizes, strides = ((1, 1), (1, 1)) if self._is_whole else ((rows, self._groups), (1, rows))
        scale = torch.empty_strided(sizes, strides, dtype=torch.float32, device=device)
        regime = (m >= ENOUGH) + (m >= MANY)
        run = self._runs.get(regime)
        if run is None:
            run = self._runs[regime] = self._prepared(regime)
        run(x, codes, scale, input_scale, m)
        return codes, scale

    def _prepared(self, regime: int) -> Run:
        """Return what quantizes so many rows."""
        if self._is_whole:
            return self._static(regime) if self.num_static else self._whole(regime)
        is_long = self.k > WIDEST or (self.k > LONG and regime == 2)
        return self._long() if self._groups == 1 and is_long else self._tiles(regime)

    def _tiles(self, regime: int) -> Run:
        width = _power_above(self._size)
        groups = min(max(WIDTH // width, 1), _power_above(self._groups))
        across, height, stages = -(-self._groups // groups), _height(regime, width * groups), 1
        most = MOST_ROWS
        if self._groups > 1 and regime == 2:
            height, stages = max(height // 2, 1), AHEAD + 1
            most = max(PROGRAMS // across, 1)
        constants = (self._size, height, groups, width, stages, *self._range, *self._scale)
        launch = _launcher(kernels.quantize_tiles, height * groups * width, constants)
        k, num_groups = self.k, self._groups

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride, rows = x.stride(0), codes.shape[0]
            grid = (min(-(-m // height), most), across)
            sizes = (m, k, num_groups, stride, k, 1, rows)
            launch(_key(x, stride), grid, x, codes, scale, *sizes)

        return run

    def _long(self) -> Run:
        k, width = self.k, TILE if self.k < 2 * TILE else 2 * TILE
        constants = (width, *self._range, *self._scale)
        launch = _launcher(kernels.quantize_long_row, width, constants)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            launch(_key(x, stride), (m, 1), x, codes, scale, k, stride, k)

        return run

    def _static(self, regime: int) -> Run:
        height, num, k = _height(regime, WIDTH), self.num_static, self.k
        constants = (num, _power_above(num), height, WIDTH, *self._range)
        launch = _launcher(kernels.quantize_static, height * WIDTH, constants)
        across = -(-k // WIDTH)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            key = (*_key(x, stride), is_aligned(given))
            grid = (-(-m // height), across)
            launch(key, grid, x, codes, given, scale, m, k, stride, k)

        return run

    def _whole(self, regime: int) -> Run:
        height, k = _height(regime, WIDTH), self.k
        look = _launcher(kernels.largest_of_parts, height * WIDTH, (height, WIDTH))
        constants = (PARTS, height, WIDTH, *self._range, *self._scale)
        launch = _launcher(kernels.quantize_whole, height * WIDTH, constants)
        across = -(-k // WIDTH)

        def run(x: Tensor, codes: Tensor, scale: Tensor, given: Tensor | None, m: int) -> None:
            stride = x.stride(0)
            key, down = _key(x, stride), -(-m // height)
            num_parts = min(down, PARTS)
            parts = torch.empty(num_parts, dtype=torch.int32, device=x.device)
            look(key, (num_parts, 1), x, parts, m, k, stride)
            launch(key, (down, across), x, codes, parts, num_parts, scale, m, k, stride, k)

        return run


@lru_cache(maxsize=4096)
def quantizer(spec: QuantSpec, k: int, num_static: int = 0, saturates: bool = False) -> Quantizer:
    """Return what quantizes rows of ``k`` values by ``spec``.

    Args:
        num_static: how many static scales are given.
        saturates: the device's conversion to the element keeps values in range by itself.
    """
    return Quantizer(spec, k, num_static, saturates)


def _launcher(kernel: object, values: int, constants: tuple[object, ...]) -> Launcher:
    """Return the launcher of a kernel whose programs work on so many values each."""
    threads = min(max(values // VALUES_PER_THREAD, 4 * _WARP), 32 * _WARP)
    return Launcher(kernel, constants, num_warps=threads // _WARP)


def _height(regime: int, width: int) -> int:
    """Return how many rows a program works on: few rows go to as many programs as they can."""
    return max(TILE // width, 1) if regime > 0 else 1


def _key(x: Tensor, stride: int) -> tuple[object, ...]:
    """Return what of ``x`` a compiled kernel depends on, besides its constants."""
    return x.get_device(), x.dtype, is_aligned(x), stride % 16, stride == 1
