"""Scales that no quantizer means: NaN, infinite or negative. They would spread without a word.

Nor may a scale be so large that it makes codes infinite, as the last exponent bytes do. Nor can a
static scale of an input be 0, as tools write it for experts that no sample reached: it is divided
by.

>>> import torch
>>> str(find_fault(torch.tensor([[1.0, torch.nan]])))
'1 of 2 NaN, the first at [0, 1]'
>>> find_fault(torch.tensor([-0.5]), may_be_negative=True) is None
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from torch import Tensor

from quantdock.errors import LoadError
from quantdock.formats import ELEMENTS, QuantSpec

if TYPE_CHECKING:
    from quantdock.methods.pending import PendingWeights
    from quantdock.numerics.canonical import CanonicalWeight
    from quantdock.schemes import LayerFacts

_FLOAT32 = 3.4028234663852886e38  # the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFault:
    """The scales of one kind that are wrong: how many of them, and where the first is."""

    kind: str
    count: int
    total: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        where = f", the first at {list(self.first)}" if self.total > 1 else ""
        return f"{self.count:,} of {self.total:,} {self.kind}{where}"


def find_fault(
    scale: Tensor, *, may_be_negative: bool = False, is_divisor: bool = False, most: float = inf
) -> ScaleFault | None:
    """Return what is wrong with ``scale``: NaN before infinity, and that before a sign, or 0.

    Args:
        most: the largest that leaves the values it scales finite.
    """
    if scale.numel() == 0:
        return None
    low, high = (float(end) for end in scale.aminmax())
    is_sound = low >= (-inf if may_be_negative else 0.0) and not (is_divisor and low == 0)
    if is_sound and -inf < low <= high < inf and max(-low, high) <= most:
        return None
    masks = {
        "NaN": scale.isnan(),
        "infinite": scale.isinf(),
        "too large for float32": scale.abs() > most,
        "negative": scale < 0,
    }
    if is_divisor:
        masks["zero"] = scale == 0
    kind, mask = next((kind, mask) for kind, mask in masks.items() if bool(mask.any()))
    first = tuple(int(index) for index in mask.nonzero()[0])
    return ScaleFault(kind=kind, count=int(mask.sum()), total=scale.numel(), first=first)


def may_be_negative(spec: QuantSpec) -> bool:
    """Return whether tools write negative scales for this element: for integers some do."""
    return not ELEMENTS[spec.element].is_float


def require_sound(
    weight: CanonicalWeight,
    stored: Sequence[Mapping[str, Tensor]],
    pending: PendingWeights,
    facts: LayerFacts,
) -> None:
    """Raise where a scale of ``weight`` is none that a quantizer means.

    Args:
        stored: what it was decoded from, one mapping (slot name -> tensor) a shard.
        pending: where that had arrived, under the spellings of the file.
        facts: of the layer.
    Raises:
        LoadError: names layers and tensors, how many scales are wrong, and where.
    """
    wrong = list(_wrong(weight))
    if not wrong:
        return
    last = len(stored) - 1
    shards = dict.fromkeys(min(index, last) for index, _ in wrong)
    prefixes = facts.shards or (pending.name,) * len(stored)
    named = {
        f"{prefixes[shard]}.{pending.spelled[shard][slot]}": stored[shard][slot]
        for shard in shards
        for slot in _suspects(stored[shard])
        if slot in pending.spelled[shard]  # others are defaults
    }
    raise LoadError(
        f"{', '.join(prefixes[shard] for shard in shards)} has scales that no weight can have.",
        why=[*(text for _, text in wrong), f"as stored in {', '.join(map(_shown, named.items()))}"],
        todo="The file is damaged or the quantizer failed: download or quantize it again. "
        "`quantdock doctor` lists every such layer.",
        names=tuple(named),
    )


def _shown(stored: tuple[str, Tensor]) -> str:
    """Return the name of a tensor, and its value where it is one number."""
    name, tensor = stored
    return f"{name} ({float(tensor)})" if tensor.numel() == 1 else name


def _wrong(weight: CanonicalWeight) -> Iterator[tuple[int, str]]:
    """Yield the segment of each fault, and what it is."""
    for index, segment in enumerate(weight.segments):
        negative = may_be_negative(segment.spec)
        second = segment.second_scale
        most = _most(segment.spec, second)
        if fault := find_fault(segment.scale, may_be_negative=negative, most=most):
            yield index, f"scales of the weight: {fault}"
        if second is not None and (fault := find_fault(second, may_be_negative=negative)):
            yield index, f"second scale of the weight: {fault}"
    for index, scale in enumerate(() if weight.input_scale is None else weight.input_scale):
        if fault := find_fault(scale, is_divisor=True):
            yield index, f"scale of the input: {fault}"
    multiplier = weight.input_multiplier
    if multiplier is not None and (fault := find_fault(multiplier, may_be_negative=True)):
        yield 0, f"multiplier of the input: {fault}"


def _most(spec: QuantSpec, second: Tensor | None) -> float:
    """Return the largest scale under which no code of ``spec`` is infinite."""
    others = float(second.abs().max()) if second is not None and second.numel() else 1.0
    largest = ELEMENTS[spec.element].largest * others
    return _FLOAT32 / largest if isfinite(largest) and largest > 0 else inf


def _suspects(stored: Mapping[str, Tensor]) -> list[str]:
    """Return the slots whose own values show the fault; else those that are called scales."""
    numbers = {
        name: tensor.float()
        for name, tensor in stored.items()
        if tensor.is_floating_point() and tensor.dtype.itemsize > 1
    }
    found = [
        name
        for name, values in numbers.items()
        if find_fault(
            values,
            may_be_negative="scale" not in name,
            is_divisor=values.numel() == 1,  # one for all that is 0 scales nothing
        )
    ]
    return found or [name for name in stored if "scale" in name]
