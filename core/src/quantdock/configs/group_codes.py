"""What the integer dialects by groups share of codes, scales and zero points in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError, LoadError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics.canonical import CanonicalWeight, Segment


def bits_of(spec: QuantSpec) -> int:
    """Return the bits of one code."""
    return ELEMENTS[spec.element].bits


def middle(spec: QuantSpec) -> int:
    """Return the zero point that a symmetric weight has in unsigned codes."""
    return 1 << bits_of(spec) - 1


def with_sign(codes: Tensor, spec: QuantSpec) -> Tensor:
    """Return unsigned ``codes`` as the element of ``spec`` has them; the same memory."""
    return codes if spec.zero else codes.sub_(middle(spec)).view(torch.int8)


def without_sign(segment: Segment) -> Tensor:
    """Return the codes of ``segment`` as files have them, uint8."""
    if segment.codes.dtype == torch.uint8:
        return segment.codes
    return segment.codes.view(torch.uint8) + middle(segment.spec)


def zeros_without_sign(segment: Segment) -> Tensor:
    """Return the zero points that belong to ``without_sign``, uint8 of the scale's shape.

    Raises:
        FormatError: one is no code.
    """
    if segment.zero is None:
        middle_or_none = middle(segment.spec) if segment.codes.dtype == torch.int8 else 0
        return torch.full(
            segment.scale.shape, middle_or_none, dtype=torch.uint8, device=segment.scale.device
        )
    largest = int(ELEMENTS[segment.spec.element].largest)
    wrong = (segment.zero < 0) | (segment.zero > largest)
    if bool(wrong.any()):
        raise FormatError(
            f"{int(wrong.sum())} of {wrong.numel()} zero points are no {segment.spec.element}.",
            why=[f"one is {int(segment.zero[wrong][0])}, codes are 0 to {largest}"],
            todo="Quantize with integer zero points inside the codes.",
        )
    return segment.zero.to(torch.uint8)


def require_middle(name: str, zeros: Tensor, spec: QuantSpec, stated: str) -> None:
    """Raise unless all ``zeros`` [N, groups] of the module ``name`` are those of ``spec``.

    Args:
        stated: what the file says of them, such as "sym = True".
    Raises:
        LoadError: some are not the middle of the codes.
    """
    wrong = zeros != middle(spec)
    if bool(wrong.any()):
        row, group = (int(i) for i in wrong.nonzero()[0])
        raise LoadError(
            f"{name}.qzeros: {int(wrong.sum())} of {wrong.numel()} zero points are not "
            f"{middle(spec)}, though {stated}.",
            why=[f"that of output {row} in group {group} is {int(zeros[row, group])}"],
            todo="If these zero points are meant, correct that field of the quantization block.",
            names=(f"{name}.qzeros",),
        )


def only_segment(weight: CanonicalWeight, method: str, bits: tuple[int, ...]) -> Segment:
    """Return the one segment of a weight that ``method`` can store in groups of one row.

    Raises:
        FormatError: it has several, or is encoded in another way.
    """
    specs = {str(segment.spec) for segment in weight.segments}
    spec = weight.segments[0].spec
    is_integer = not ELEMENTS[spec.element].is_float and spec.rows == 1
    if len(weight.segments) > 1 or not is_integer or bits_of(spec) not in bits:
        raise FormatError(
            f"{method} cannot store a weight of {len(weight.segments)} segments in "
            f"{', '.join(sorted(specs))}.",
            why=[f"it stores integers of {', '.join(map(str, bits))} bits, a scale a row or group"],
            todo="Store each shard on its own, or choose another method.",
        )
    return weight.segments[0]
