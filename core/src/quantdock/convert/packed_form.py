"""The form of layers in fp4 and fp6: several codes in a byte, scales of MX or NV beside them.

Dialects differ in names, and in whether second scales multiply or divide; what a reader of theirs
says of that (``PackedNames``) is what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from quantdock.configs.packed_floats import PackedNames
from quantdock.convert.dialect import Describe, Encode, dense_form, stored_scale
from quantdock.convert.integers import group_misfits
from quantdock.errors import SaveError
from quantdock.formats import ELEMENTS
from quantdock.numerics import CanonicalWeight, pack_bytes
from quantdock.schemes import Scheme, StoredTensor

_BYTE_BITS = 8
_NEIGHBOURS = (0, 1, -1, 2, -2)  # steps of f32 from the rounded reciprocal


def packed_form(codes: str, names: PackedNames, level: tuple[int, ...]) -> tuple[Describe, Encode]:
    """Return how a layer is stored whose codes lie packed in the tensor called ``codes``.

    Args:
        level: the shape of second scales, which have one value.
    """
    return (
        partial(_describe, codes=codes, names=names, level=level),
        partial(_encode, codes=codes, names=names, level=level),
    )


def float_form(codes: str, names: PackedNames, level: tuple[int, ...]) -> tuple[Describe, Encode]:
    """Return the same for a dialect that has layers of one code a byte, too, under these names."""
    dense, packed = dense_form(names.scale[0]), packed_form(codes, names, level)

    def describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
        return (packed if _is_packed(scheme) else dense)[0](scheme, n, k, scale_dtype)

    def encode(scheme: Scheme, weight: CanonicalWeight, scale_dtype: str) -> dict[str, Tensor]:
        return (packed if _is_packed(scheme) else dense)[1](scheme, weight, scale_dtype)

    return describe, encode


def packed_misfits(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    """Yield that groups of packed floats do not fill the K columns of a layer."""
    if _is_packed(scheme):
        yield from group_misfits(scheme.weight, k)


def _is_packed(scheme: Scheme) -> bool:
    element = ELEMENTS[scheme.weight.element]
    return element.is_float and element.bits < _BYTE_BITS


def _describe(
    scheme: Scheme,
    n: int,
    k: int,
    scale_dtype: str,
    *,
    codes: str,
    names: PackedNames,
    level: tuple[int, ...],
) -> dict[str, StoredTensor]:
    spec = scheme.weight
    bits = ELEMENTS[spec.element].bits
    one = StoredTensor(dtype="float32", shape=level)
    stored = {
        codes: StoredTensor(dtype="uint8", shape=(n, k * bits // _BYTE_BITS)),
        names.scale[0]: StoredTensor(dtype=scale_dtype, shape=spec.grid(n, k)),
    }
    if spec.second is not None:
        stored[names.second] = one
    if scheme.is_static:
        stored[names.input_scale[0]] = one
    return stored


def _encode(
    scheme: Scheme,
    weight: CanonicalWeight,
    scale_dtype: str,
    *,
    codes: str,
    names: PackedNames,
    level: tuple[int, ...],
) -> dict[str, Tensor]:
    (segment,) = weight.segments
    bits = ELEMENTS[segment.spec.element].bits
    tensors = {
        codes: pack_bytes(segment.codes, bits=bits),
        names.scale[0]: stored_scale(segment.scale, scale_dtype),
    }
    levels: Mapping[str, Tensor | None] = {
        names.second: segment.second_scale,
        names.input_scale[0]: weight.input_scale if scheme.is_static else None,
    }
    for name, scale in levels.items():
        if scale is not None:
            kept = divisor_of(scale) if names.divides else scale
            tensors[name] = kept.reshape(level).clone()
    return tensors


def divisor_of(scale: Tensor) -> Tensor:
    """Return the f32 numbers whose reciprocals, rounded to f32, are ``scale``.

    >>> divisor_of(torch.tensor([0.25, 3.0])).tolist()
    [4.0, 0.3333333432674408]

    Raises:
        SaveError: one of them is no such reciprocal; between 1.42 and 2, and these times powers of
            two, f32 has more numbers than reciprocals of f32.
    """
    near = scale.reciprocal()
    found = torch.full_like(near, torch.nan)  # the nearest candidate is tried last, and stays
    for steps in reversed(_NEIGHBOURS):
        candidate = (near.view(torch.int32) + steps).view(torch.float32)
        found = torch.where(candidate.reciprocal() == scale, candidate, found)
    if bool(found.isnan().any()):
        lost = scale[found.isnan()][0].item()
        raise SaveError(
            f"A second scale of {lost!r} cannot be stored as a divisor.",
            why=[f"no f32 number has a reciprocal that is rounded to it; {1 / lost:.9g} is near"],
            todo="quantdock convert --to nvfp4 rounds it and counts what changes; --to modelopt "
            "keeps it, since second scales multiply there.",
        )
    return found
