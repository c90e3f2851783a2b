"""Which tiles the scale of a stored weight is for, as its shape alone shows it.

>>> weight = StoredTensor(dtype="float8_e4m3fn", shape=(512, 256))
>>> scale = StoredTensor(dtype="float32", shape=(4, 2))
>>> [str(spec) for spec in fitting_tiles("fp8_e4m3", weight, scale)]
['fp8_e4m3[128x128]']
"""

from __future__ import annotations

from itertools import product

from quantdock.configs.fp8_tensors import scale_shapes
from quantdock.formats import QuantSpec
from quantdock.schemes import StoredTensor

GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_Tile = tuple[int | None, int | None]
# Likely ones first: of a kind that fits, no other is looked at.
_KINDS: tuple[tuple[_Tile, ...], ...] = (
    ((None, None), (1, None)),
    tuple((size, size) for size in GROUP_SIZES),
    tuple((1, size) for size in GROUP_SIZES),
    tuple((rows, cols) for rows, cols in product(GROUP_SIZES, repeat=2) if rows != cols),
)


def fitting_tiles(element: str, weight: StoredTensor, scale: StoredTensor) -> tuple[QuantSpec, ...]:
    """Return the specs of which a matrix like ``weight`` has a scale of the shape of ``scale``.

    Empty where there is none of a usual size, or the weight is no matrix.
    """
    if len(weight.shape) != 2:
        return ()
    for tiles in _KINDS:
        specs = [QuantSpec(element=element, rows=rows, cols=cols) for rows, cols in tiles]
        if found := [spec for spec in specs if scale.shape in scale_shapes(spec, *weight.shape)]:
            return tuple(found)
    return ()
