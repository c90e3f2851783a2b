"""From the tensors of ``integer_tensors`` to the canonical weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from quantdock.configs.integer_tensors import (
    BYTES,
    GROUPS,
    INPUT_ZERO,
    SHAPE,
    WORDS,
    ZERO,
    scale_name,
)
from quantdock.configs.stored import INPUT_SCALES
from quantdock.errors import LoadError
from quantdock.formats import ELEMENTS, QuantSpec, num_words
from quantdock.numerics import CanonicalWeight, Segment, decode_scale, join, unpack_bits
from quantdock.schemes import Scheme

Tensors = Mapping[str, Tensor]


def decode_integers(scheme: Scheme, stored: Sequence[Tensors], where: str) -> CanonicalWeight:
    """Return the weight of a layer, one segment a shard.

    Files store every code and zero point with a sign, or packed with half of their range added.
    Symmetric weights keep the sign; those with zero points count both from 0.

    Args:
        where: the layer's name, for errors.
    Raises:
        LoadError: tensors contradict each other or the scheme.
    """
    return join([_decode(scheme, tensors, where) for tensors in stored])


def _decode(scheme: Scheme, tensors: Tensors, where: str) -> CanonicalWeight:
    spec = scheme.weight
    codes = _codes(spec, tensors, where)
    n, k = codes.shape
    grid = spec.grid(n, k)
    scale = decode_scale(tensors[scale_name(spec)]).reshape(grid)
    zero = _zero_points(spec, tensors, n, where)
    segment = Segment(
        spec=spec,
        codes=codes,
        scale=scale,
        zero=None if zero is None else zero.reshape(grid),
        group_index=_group_index(spec, tensors, k, where),
    )
    input_scale = decode_scale(tensors[INPUT_SCALES[0]]).reshape(1) if scheme.is_static else None
    return CanonicalWeight(
        segments=(segment,), input_scale=input_scale, input_zero=_input_zero(scheme, tensors, where)
    )


def _codes(spec: QuantSpec, tensors: Tensors, where: str) -> Tensor:
    """Return the codes [N, K]: signed, or counted from 0 where there are zero points."""
    bits, half = _range(spec)
    if BYTES in tensors:
        codes = tensors[BYTES]
        _require_range(codes, half, where, BYTES)
        return (codes.view(torch.uint8) + half) if spec.zero else codes  # bytes wrap around
    packed = tensors[WORDS]
    k = _true_width(packed, bits, tensors[SHAPE], where)
    raw = unpack_bits(packed, bits=bits, count=k, dense=packed.shape[1] == num_words(k, bits))
    return raw if spec.zero else (raw - half).view(torch.int8)


def _true_width(packed: Tensor, bits: int, shape: Tensor, where: str) -> int:
    """Return K as ``weight_shape`` says it, if the words are as many as it takes.

    N may be that of gate and up, of which this is one.
    """
    n, k = shape.tolist()
    possible = {num_words(k, bits), num_words(k, bits, dense=False)}
    if n not in (packed.shape[0], 2 * packed.shape[0]) or packed.shape[1] not in possible:
        expected = " or ".join(f"[{n}, {words}]" for words in sorted(possible))
        _refuse(
            where,
            SHAPE,
            f"it says [{n}, {k}], which takes {expected} words at {bits} bits; "
            f"{WORDS} is {list(packed.shape)}",
        )
    return int(k)


def _zero_points(spec: QuantSpec, tensors: Tensors, n: int, where: str) -> Tensor | None:
    """Return the zero points, counted from 0; None where the scheme has none."""
    stored = tensors.get(ZERO)
    if stored is None:
        return None
    bits, half = _range(spec)
    if stored.dtype == torch.int32:
        words, is_dense = stored.T.contiguous(), stored.shape[0] == num_words(n, bits)
        zero = unpack_bits(words, bits=bits, count=n, dense=is_dense).T.to(torch.int32)
    else:
        _require_range(stored, half, where, ZERO)
        zero = stored.to(torch.int32) + half
    if spec.zero:
        return zero
    _require_zeros(zero - half, where, ZERO)
    return None


def _group_index(spec: QuantSpec, tensors: Tensors, k: int, where: str) -> Tensor | None:
    """Return the group of each column in act-order; -1 everywhere means that none was moved."""
    stored = tensors.get(GROUPS)
    if stored is None:
        return None
    width = spec.cols or k
    in_order = torch.arange(k, dtype=torch.int32, device=stored.device) // width
    index = in_order if bool((stored == -1).all()) else stored.to(torch.int32)
    num_groups = -(-k // width)
    if bool(((index < 0) | (index >= num_groups)).any()):
        low, high = index.aminmax()
        _refuse(where, GROUPS, f"it has {low} to {high}; there are {num_groups} groups")
    if spec.act_order:
        return index
    moved = int((index != in_order).sum())
    if moved:
        what = f"it moves {moved} of {k} columns to other groups, and actorder does not say so"
        _refuse(where, GROUPS, what)
    return None


def _input_zero(scheme: Scheme, tensors: Tensors, where: str) -> Tensor | None:
    stored = tensors.get(INPUT_ZERO)
    if stored is None or not scheme.is_static or scheme.activation is None:
        return None
    zero = stored.to(torch.int32).reshape(1)
    if scheme.activation.zero:
        return zero
    _require_zeros(zero, where, INPUT_ZERO)
    return None


def _range(spec: QuantSpec) -> tuple[int, int]:
    """Return the bits of a code, and half of their range."""
    bits = ELEMENTS[spec.element].bits
    return bits, 1 << bits - 1


def _require_range(signed: Tensor, half: int, where: str, name: str) -> None:
    if half == 128 or not signed.numel():
        return
    low, high = signed.aminmax()
    if int(low) < -half or int(high) >= half:
        _refuse(where, name, f"it has {low} to {high}; num_bits allows {-half} to {half - 1}")


def _require_zeros(zero: Tensor, where: str, name: str) -> None:
    if bool(zero.any()):
        first = zero[zero != 0][0]
        _refuse(where, name, f"the group is symmetric, and a zero point is {int(first)}")


def _refuse(where: str, name: str, why: str) -> NoReturn:
    raise LoadError(
        f"{where}.{name} does not fit the layer.",
        why=[why],
        todo="The file contradicts its quantization_config: download or quantize it again.",
        names=(f"{where}.{name}",),
    )
