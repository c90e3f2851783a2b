"""The canonical weight: what every dialect decodes into and every kernel prepares from.

A weight [N, K] is an ordered tuple of segments of rows. Each segment keeps its own codes, scale
and zero point as meant: scales multiply, zero points are subtracted, codes lie one per byte in the
storage dtype of their element, rows are output features. Nothing here is folded or reordered for
a kernel; that is ``prepare``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics.quantize import dequantize, quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a weight that one spec decodes: ``scale * (code - zero)``.

    Shapes:
        codes: [n, K], one code per byte. scale: f32 ``spec.grid(n, K)``. zero: int32, as scale.
    """

    spec: QuantSpec
    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None

    def __post_init__(self) -> None:
        n, k = self.codes.shape
        if tuple(self.scale.shape) != self.spec.grid(n, k):
            raise FormatError(
                f"A {self.spec} segment [{n}, {k}] has a scale of shape {tuple(self.scale.shape)}.",
                why=[f"its grid is {self.spec.grid(n, k)}"],
                todo="Reshape the scale when decoding.",
            )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the real rows [n, K]."""
        return dequantize(self.codes, self.scale, self.spec, zero=self.zero, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalWeight:
    """One layer's weight, whole. ``input_scale`` is f32 [number of segments] where static.

    ``value_steps`` names every change of value since the file, such as "requantized with the
    maximum"; where it is not empty, going back means loading again.
    """

    segments: tuple[Segment, ...]
    input_scale: Tensor | None = None
    value_steps: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return sum(s.codes.shape[0] for s in self.segments), self.segments[0].codes.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the real weight [N, K]."""
        return torch.cat([segment.dequantize(dtype) for segment in self.segments])


def quantize_weight(values: Tensor, spec: QuantSpec) -> CanonicalWeight:
    """Return ``values`` [N, K] quantized to ``spec``, as one segment."""
    made = quantize(values, spec)
    segment = Segment(spec=spec, codes=made.codes, scale=made.scale, zero=made.zero)
    return CanonicalWeight(segments=(segment,))


def join(parts: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Return the weight whose segments are those of ``parts`` in order (a fused layer)."""
    scales = [part.input_scale for part in parts if part.input_scale is not None]
    return CanonicalWeight(
        segments=tuple(segment for part in parts for segment in part.segments),
        input_scale=torch.cat([scale.reshape(-1) for scale in scales]) if scales else None,
        value_steps=tuple(step for part in parts for step in part.value_steps),
    )
