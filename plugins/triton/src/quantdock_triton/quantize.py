"""Activations to codes and scales on a device, equal to ``quantdock.numerics.quantize``."""

from __future__ import annotations

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
WIDEST = 32768  # columns that registers can hold
# Groups of many rows are read ahead by programs that take turns with rows.
AHEAD = 2  # turns
PROGRAMS = 1056  # that fill the device; 8 for each multiprocessor of an H200
VALUES_PER_THREAD = 16
ROW_MULTIPLE = 4  # memory is there for rows up to it: libraries read whole vectors of scales
PARTS = 1024  # programs that look for the largest magnitude of a whole tensor
_WARP = 32
_FRACTION_BITS = 23  # of f32


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
        self._launchers: dict[object, Launcher] = {}

    def __call__(self, x: Tensor, input_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x`` and their scales.

        Shapes:
            x: float [M, K], M >= 1; columns side by side. input_scale: f32 [num_static], folded to
            the largest; None where scales are computed. Returns codes [M + 0..3, K], of which M
            rows are written, and f32 scales: [1, 1] of a whole tensor; else as many rows and a
            column for each group, columns side by side.
        """
        m = x.shape[0]
        rows = -(-m // ROW_MULTIPLE) * ROW_MULTIPLE
        codes = torch.empty((rows, self.k), dtype=self.dtype, device=x.device)
        if not self._is_whole:
            scale = torch.empty((self._groups, rows), dtype=torch.float32, device=x.device).t()
            self._tiles(x, codes, scale, m)
            return codes, scale
        scale = torch.empty((1, 1), dtype=torch.float32, device=x.device)
        if input_scale is None:
            self._whole(x, codes, scale, m)
        else:
            self._static(x, codes, input_scale, scale, m)
        return codes, scale

    def _tiles(self, x: Tensor, codes: Tensor, scale: Tensor, m: int) -> None:
        if self._groups == 1 and (self.k > WIDEST or (self.k > LONG and m >= MANY)):
            self._long(x, codes, scale, m)
            return
        width = _power_above(self._size)
        groups = min(max(WIDTH // width, 1), _power_above(self._groups))
        across, height, stages = -(-self._groups // groups), _height(m, width * groups), 1
        down = -(-m // height)
        if self._groups > 1 and m >= MANY:
            height, stages = max(height // 2, 1), AHEAD + 1
            down = min(-(-m // height), max(PROGRAMS // across, 1))
        constants = (self._size, height, groups, width, stages, *self._range, *self._scale)
        launcher = self._launcher(kernels.quantize_tiles, height * groups * width, constants)
        stride, between = x.stride(0), scale.stride(1)
        sizes = (m, self.k, self._groups, stride, self.k, 1, between)
        launcher(_key(x, stride), (down, across), x, codes, scale, *sizes)

    def _long(self, x: Tensor, codes: Tensor, scale: Tensor, m: int) -> None:
        width = TILE if self.k < 2 * TILE else 2 * TILE
        constants = (width, *self._range, *self._scale)
        launcher = self._launcher(kernels.quantize_long_row, width, constants)
        stride = x.stride(0)
        launcher(_key(x, stride), (m, 1), x, codes, scale, self.k, stride, self.k)

    def _static(self, x: Tensor, codes: Tensor, given: Tensor, folded: Tensor, m: int) -> None:
        height, num = _height(m, WIDTH), self.num_static
        constants = (num, _power_above(num), height, WIDTH, *self._range)
        launcher = self._launcher(kernels.quantize_static, height * WIDTH, constants)
        grid, stride = (-(-m // height), -(-self.k // WIDTH)), x.stride(0)
        key = (_key(x, stride), is_aligned(given))
        launcher(key, grid, x, codes, given, folded, m, self.k, stride, self.k)

    def _whole(self, x: Tensor, codes: Tensor, scale: Tensor, m: int) -> None:
        height, stride = _height(m, WIDTH), x.stride(0)
        key = _key(x, stride)
        num_parts = min(-(-m // height), PARTS)
        parts = torch.empty(num_parts, dtype=torch.int32, device=x.device)
        look = self._launcher(kernels.largest_of_parts, height * WIDTH, (height, WIDTH))
        look(key, (num_parts, 1), x, parts, m, self.k, stride)
        constants = (PARTS, height, WIDTH, *self._range, *self._scale)
        launcher = self._launcher(kernels.quantize_whole, height * WIDTH, constants)
        grid = (-(-m // height), -(-self.k // WIDTH))
        launcher(key, grid, x, codes, parts, num_parts, scale, m, self.k, stride, self.k)

    def _launcher(self, kernel: object, values: int, constants: tuple[object, ...]) -> Launcher:
        """Return the launcher of a kernel whose programs work on so many values each."""
        found = self._launchers.get((kernel, constants))
        if found is None:
            threads = min(max(values // VALUES_PER_THREAD, 4 * _WARP), 32 * _WARP)
            found = Launcher(kernel, constants, num_warps=threads // _WARP)
            self._launchers[kernel, constants] = found
        return found


@lru_cache(maxsize=4096)
def quantizer(spec: QuantSpec, k: int, num_static: int = 0, saturates: bool = False) -> Quantizer:
    """Return what quantizes rows of ``k`` values by ``spec``.

    Args:
        num_static: how many static scales are given.
        saturates: the device's conversion to the element keeps values in range by itself.
    """
    return Quantizer(spec, k, num_static, saturates)


def _height(m: int, width: int) -> int:
    """Return how many rows a program works on: few rows go to as many programs as they can."""
    return max(TILE // width, 1) if m >= TILE // WIDTH else 1


def _key(x: Tensor, stride: int) -> tuple[object, ...]:
    """Return what of ``x`` a compiled kernel depends on, besides its constants."""
    return x.get_device(), x.dtype, is_aligned(x), stride % 16, stride == 1
