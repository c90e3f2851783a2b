"""The canonical weight: what every dialect decodes into and every kernel prepares from.

A weight [N, K] is an ordered tuple of segments of rows. Each segment keeps its own codes, scale
and zero point as meant: scales multiply, zero points are subtracted, codes lie one per byte in the
storage dtype of their element, rows are output features. Integer weights with a zero point have an
unsigned element, symmetric ones a signed one, whatever the file stores. Nothing here is folded or
reordered for a kernel; that is ``prepare``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics.quantize import dequantize, quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a weight that one spec decodes: ``scale * (code - zero)``.

    In act-order (GPTQ's ``g_idx``) column k has the scale in column ``group_index[k]`` of the grid,
    which then has one column a group; groups may be of unequal size and in any order.

    Shapes:
        codes: [n, K], one code per byte. scale: f32 ``spec.grid(n, K)``; in act-order [n, groups].
        zero: int32, as scale. group_index: int32 [K], where the spec says act-order.
        second_scale: f32 ``spec.second.grid(n, K)``, where the spec has two levels.
    """

    spec: QuantSpec
    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None
    group_index: Tensor | None = None
    second_scale: Tensor | None = None

    def __post_init__(self) -> None:
        wrong = self._misfits()
        if wrong:
            raise FormatError(
                f"A {self.spec} segment {list(self.codes.shape)} does not fit together.",
                why=wrong,
                todo="Reshape its tensors when decoding.",
            )

    def _misfits(self) -> list[str]:
        n, k = self.codes.shape
        grid, spec = tuple(self.scale.shape), self.spec
        expected = (n, grid[-1]) if spec.act_order and grid else spec.grid(n, k)
        wrong = []
        if grid != expected:
            wrong.append(f"its scale has shape {grid}, its grid is {expected}")
        if (self.zero is not None) is not spec.zero:
            wrong.append(f"it {'has no' if self.zero is None else 'has a'} zero point")
        elif self.zero is not None and self.zero.shape != self.scale.shape:
            wrong.append(f"its zero points have shape {tuple(self.zero.shape)}, its scale {grid}")
        if (self.group_index is not None) is not spec.act_order:
            wrong.append(f"it {'has no' if self.group_index is None else 'has a'} group index")
        elif self.group_index is not None and tuple(self.group_index.shape) != (k,):
            wrong.append(f"its group index has shape {tuple(self.group_index.shape)}, not ({k},)")
        second = None if self.second_scale is None else tuple(self.second_scale.shape)
        wanted = None if spec.second is None else spec.second.grid(n, k)
        if second != wanted:
            wrong.append(f"its second scale has shape {second}, its grid is {wanted}")
        return wrong

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the real rows [n, K]."""
        spec, scale, zero = self.spec, self.scale, self.zero
        if self.group_index is not None:  # as tiles one column wide
            spec = replace(spec, cols=1, act_order=False)
            scale = scale[:, self.group_index]
            zero = None if zero is None else zero[:, self.group_index]
        return dequantize(
            self.codes, scale, spec, zero=zero, second_scale=self.second_scale, dtype=dtype
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalWeight:
    """One layer's weight, whole.

    ``value_steps`` names every change of value since the file, such as "requantized with the
    maximum"; where it is not empty, going back means loading again.

    Shapes:
        input_scale: f32 [number of segments], where activations are static; where they are dynamic
        under a static second scale, that one.
        input_zero: int32 [number of segments], where static activations have a zero point.
        input_multiplier: f32 [K]; x is multiplied by it before anything else.
    """

    segments: tuple[Segment, ...]
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None
    input_multiplier: Tensor | None = None
    value_steps: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return sum(s.codes.shape[0] for s in self.segments), self.segments[0].codes.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the real weight [N, K]."""
        return torch.cat([segment.dequantize(dtype) for segment in self.segments])

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weight [N, K] of a layer whose input is not multiplied first."""
        if self.input_multiplier is None:
            return self.dequantize(dtype)
        return (self.dequantize() * self.input_multiplier).to(dtype)


def quantize_weight(values: Tensor, spec: QuantSpec) -> CanonicalWeight:
    """Return ``values`` [N, K] quantized to ``spec``, as one segment."""
    made = quantize(values, spec)
    segment = Segment(
        spec=spec,
        codes=made.codes,
        scale=made.scale,
        zero=made.zero,
        second_scale=made.second_scale,
    )
    return CanonicalWeight(segments=(segment,))


def join(parts: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Return the weight whose segments are those of ``parts`` in order (a fused layer).

    Raises:
        FormatError: some parts have an input scale, zero or multiplier and others have not, or
            the multipliers differ.
    """
    if len(parts) == 1:
        return parts[0]
    multipliers = _all_or_none("input multiplier", [part.input_multiplier for part in parts])
    if any(not torch.equal(multipliers[0], other) for other in multipliers[1:]):
        raise FormatError(
            f"The {len(parts)} shards of a fused layer multiply their input differently.",
            why=["one input serves all of them"],
            todo="Build the shards as layers of their own.",
        )
    return CanonicalWeight(
        segments=tuple(segment for part in parts for segment in part.segments),
        input_scale=_gathered("input scale", [part.input_scale for part in parts]),
        input_zero=_gathered("input zero point", [part.input_zero for part in parts]),
        input_multiplier=multipliers[0] if multipliers else None,
        value_steps=tuple(step for part in parts for step in part.value_steps),
    )


def _gathered(what: str, tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = _all_or_none(what, tensors)
    return torch.cat([tensor.reshape(-1) for tensor in present]) if present else None


def _all_or_none(what: str, tensors: Sequence[Tensor | None]) -> list[Tensor]:
    present = [tensor for tensor in tensors if tensor is not None]
    if present and len(present) < len(tensors):
        missing = [str(index) for index, tensor in enumerate(tensors) if tensor is None]
        raise FormatError(
            f"{len(present)} of {len(tensors)} shards of a fused layer have an {what}.",
            why=[f"missing: shard {', '.join(missing)}"],
            todo="Load the tensors of all shards, or build the shards as layers of their own.",
        )
    return present
