"""What a file's headers say of one layer's weights, where they decide against the JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from quantdock.formats import DTYPES, ELEMENTS, QuantSpec
from quantdock.schemes import LayerFacts, StoredTensor

HEADERS = "the file's headers"  # the source of decisions by what is stored
# Every name tools have given to the scale of an fp8 weight or of its input. All of them multiply,
# "inv" or not. The usual one first.
WEIGHT_SCALES = ("weight_scale", "weight_scale_inv", "scale", "scale_inv", "qscale_weight")
INPUT_SCALES = ("input_scale", "activation_scale", "input_scale_inv", "act_scale", "qscale_act")

_FLOAT8 = {e.storage: e.name for e in ELEMENTS.values() if e.bits == 8 and e.is_float}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One weight of a layer and the scales beside it; ``name`` is the module it lies under."""

    name: str
    weight: StoredTensor
    beside: Mapping[str, StoredTensor]

    @property
    def scale(self) -> tuple[str, StoredTensor] | None:
        """Return the weight's scale and what it is called; None where there is none."""
        for name in WEIGHT_SCALES:
            if name in self.beside:
                return name, self.beside[name]
        return None

    @property
    def has_input_scale(self) -> bool:
        """Return whether a static activation scale is stored."""
        return not self.beside.keys().isdisjoint(INPUT_SCALES)

    @property
    def is_plain(self) -> bool:
        """Return whether the weight is an ordinary float tensor without a scale."""
        return DTYPES[self.weight.dtype].floating and self.scale is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one stored weight is: encoded by ``spec``, plain (neither), or an error."""

    spec: QuantSpec | None = None
    error: str = ""


def stored_weights(facts: LayerFacts, codes: str = "weight") -> tuple[StoredWeight, ...]:
    """Return the weights that the file stores for a layer: one, or one a shard or expert.

    ``codes`` is the tensor that a weight lies in.

    The stored names of a fused layer begin with a shard's last component ("q_proj.weight"), those
    of experts with the expert's ("0.gate_proj.weight").
    """
    parts: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for key, tensor in (facts.stored or {}).items():
        part, _, last = key.rpartition(".")
        parts[part][last] = tensor
    return tuple(
        StoredWeight(name=_full_name(facts, part), weight=tensors[codes], beside=tensors)
        for part, tensors in parts.items()
        if codes in tensors
    )


def stored_for_all(weights: Sequence[StoredWeight], tensor: str) -> tuple[bool, str]:
    """Return whether ``tensor`` stands beside the weights, and what is wrong if beside some only.

    >>> weight = StoredTensor(dtype="int8", shape=(2, 2))
    >>> q = StoredWeight(name="q", weight=weight, beside={"s": weight})
    >>> stored_for_all([q, StoredWeight(name="k", weight=weight, beside={})], "s")
    (True, 's is stored for q and not for k')
    """
    having = [weight.name for weight in weights if tensor in weight.beside]
    others = [weight.name for weight in weights if tensor not in weight.beside]
    is_torn = bool(having and others)
    wrong = f"{tensor} is stored for {', '.join(having)} and not for {', '.join(others)}"
    return bool(having), wrong if is_torn else ""


def read_weight(stored: StoredWeight, specs: Sequence[QuantSpec]) -> Reading:
    """Return what ``stored`` is; the number of its scales chooses among ``specs``, by their order.

    The element is what the weight is stored as; raw bytes have the element of ``specs``.
    """
    if stored.is_plain:
        return Reading()
    dtype, scale = stored.weight.dtype, stored.scale
    if not is_fp8(dtype):
        also = f" beside {scale[0]}" if scale else ""
        return Reading(error=f"{stored.name}.weight is stored as {dtype}{also}, which is not fp8")
    if scale is None:
        return Reading(
            error=f"{stored.name}.weight is stored as {dtype} and its scale is missing: none of "
            f"{', '.join(WEIGHT_SCALES)} stands beside it"
        )
    name, tensor = scale
    spec = _spec_by_count(dtype, stored.weight.shape, prod(tensor.shape), tuple(specs))
    if spec is not None:
        return Reading(spec=spec)
    expected = (f"{_count(s, stored.weight.shape)} (one a {_tile(s)})" for s in specs)
    return Reading(
        error=f"{stored.name}.{name} has {prod(tensor.shape)} elements, shape "
        f"{list(tensor.shape)}; expected {' or '.join(expected)}"
    )


def is_fp8(dtype: str) -> bool:
    """Return whether an fp8 weight may be stored in ``dtype``: it is an 8-bit float, or bytes."""
    return dtype in _FLOAT8 or dtype == "uint8"


@lru_cache(maxsize=4096)
def _spec_by_count(
    dtype: str, shape: tuple[int, ...], count: int, specs: tuple[QuantSpec, ...]
) -> QuantSpec | None:
    """Return the first of ``specs`` of which a weight of this shape has ``count`` scales."""
    spec = next((spec for spec in specs if _count(spec, shape) == count), None)
    return replace(spec, element=_FLOAT8.get(dtype, spec.element)) if spec else None


def _count(spec: QuantSpec, shape: tuple[int, ...]) -> int:
    """Return how many scales a weight [..., N, K] has."""
    *stack, n, k = (*(1,) * (2 - len(shape)), *shape)
    return prod((*stack, *spec.grid(n, k)))


def _tile(spec: QuantSpec) -> str:
    if spec.granularity in ("tensor", "channel"):
        return {"tensor": "tensor", "channel": "row"}[spec.granularity]
    return f"{spec.rows or '*'} x {spec.cols or '*'} block"


def _full_name(facts: LayerFacts, part: str) -> str:
    """Return the module whose tensors are stored under ``part``."""
    if not part:
        return facts.prefix
    stem = facts.prefix if facts.kind == "experts" else facts.prefix.rpartition(".")[0]
    return f"{stem}.{part}" if stem else part
