"""What the dialects of integer codes share: slots as they are written, and layers that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from quantdock.formats import ELEMENTS, WORD_BITS, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import StoredTensor

_SCALES = "scales"


def as_stored(slots: Iterable[Slot], scale_dtype: str) -> dict[str, StoredTensor]:
    """Return what fills the slots of a GPTQ or AWQ layer, its scales in ``scale_dtype``."""
    return {
        slot.name: StoredTensor(
            dtype=scale_dtype if slot.name == _SCALES else slot.dtypes[0], shape=slot.shape
        )
        for slot in slots
    }


def half_precision(spec: QuantSpec, model_dtype: str) -> str:
    """Return float16, which the kernels of GPTQ and AWQ compute in."""
    return "float16"


def group_misfits(spec: QuantSpec, k: int) -> Iterator[str]:
    """Yield that groups do not fill the K columns of a layer."""
    if spec.cols is not None and k % spec.cols:
        yield f"K={k} is no multiple of the group size, {spec.cols}"


def packing_misfits(spec: QuantSpec, **sizes: int) -> Iterator[str]:
    """Yield which of ``sizes`` (N or K, by name) do not fill whole words of codes."""
    bits = ELEMENTS[spec.element].bits
    codes = WORD_BITS // gcd(bits, WORD_BITS)
    for name, size in sizes.items():
        if size % codes:
            yield f"{name}={size} is no multiple of {codes}, which {bits}-bit codes are packed by"
