"""Fp8CheckpointConfig: what all configs of fp8 checkpoints share. Subclasses read the JSON.

Where the JSON and the stored tensors disagree, the tensors decide, and a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from quantdock.configs.contradictions import Contradictions
from quantdock.configs.fitting_tiles import fitting_tiles
from quantdock.configs.fp8_tensors import FLOAT_SCALES, decode_fp8, fp8_slots
from quantdock.configs.header_check import advice
from quantdock.configs.matcher import Entry, Match, Matcher
from quantdock.configs.online import OnlineConfig
from quantdock.configs.stored import (
    HEADERS,
    Reading,
    StoredWeight,
    is_fp8,
    read_weight,
    stored_weights,
)
from quantdock.formats import EXPONENT_BYTES, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import UNSTATED, Decision, KVCacheDecision, LayerFacts, Scheme
from quantdock.schemes.decision import ALIKE

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class Fp8CheckpointConfig(OnlineConfig):
    """A checkpoint of fp8 weights with scales that multiply.

    Attributes:
        specs: what its weights may be, the one that the JSON says first; the number of stored
            scales chooses.
        activation_scheme: "dynamic" or "static".
        ignored_layers: the entries of its ignore lists.
        extra: fields of the JSON that are not used, kept as they are.
        contradictions: where tensors decided against the JSON.
    """

    scale_dtypes: ClassVar[tuple[str, ...]] = (*FLOAT_SCALES, *EXPONENT_BYTES)

    def __init__(
        self,
        specs: Sequence[QuantSpec] = (QuantSpec(element="fp8_e4m3"),),
        *,
        activation_scheme: str = "dynamic",
        ignored: Sequence[Entry[None]] = (),
        kv_cache: KVCacheDecision = UNSTATED,
        stated: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.kv_cache = kv_cache
        self.specs = tuple(specs)
        self.activation_scheme = activation_scheme
        self.ignored_layers = tuple(entry.text for entry in ignored)
        self.extra = dict(extra or {})
        self._ignored = Matcher(ignored)
        self._stated = stated or f"quant_method = {self.name!r}"
        self._schemes: dict[QuantSpec, Scheme] = {}
        self.contradictions = Contradictions(self.name)
        self._decided: dict[object, Decision] = {}

    def activation_for(self, weight: QuantSpec) -> QuantSpec | None:
        """Return how activations are encoded beside ``weight``: static, a group, or a token."""
        if self.activation_scheme == "static":
            return QuantSpec(element=self.specs[0].element)
        return QuantSpec(
            element=self.specs[0].element,
            rows=1,
            cols=weight.cols,
            scale=weight.scale,
            rounding=weight.rounding,
            dynamic=True,
        )

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the file makes of a layer."""
        if self.is_online:
            return super().scheme_for(facts)
        return self.decide(facts, self._ignored.find(facts, self.packed_modules_mapping))

    def decide(self, facts: LayerFacts, listed: Match[None] | None) -> Decision:
        """Return what the file makes of a layer; ``listed`` is the entry that leaves it out."""
        # Layers that store the same and are listed by the same entry are decided alike, unless
        # something is said of them by name. A large model has 50,000 layers and ten such kinds.
        stored = tuple((facts.stored or {}).items())
        key = (facts.kind, facts.is_router, listed.source if listed else "", stored)
        if (known := self._decided.get(key)) is not None:
            return known
        said = self.contradictions.num_found
        decision = self._decide(facts, listed)
        if stored and not decision.error and self.contradictions.num_found == said:
            self._decided[key] = decision
        return decision

    def _decide(self, facts: LayerFacts, listed: Match[None] | None) -> Decision:
        if facts.kind == "attention":
            return Decision.unquantized("attention has no weights of its own", self._stated)
        if weights := stored_weights(facts):
            return self._by_tensors(facts, weights, listed)
        if listed:
            if listed.conflict:
                return Decision.refused(listed.conflict, listed.source, ALIKE)
            return Decision.unquantized("the checkpoint lists it as unquantized", listed.source)
        if facts.kind in ("embedding", "head"):
            because = f"the {facts.kind} is plain unless the file stores it quantized"
            return Decision.unquantized(because, self._stated)
        return self._quantized(self.specs[0], "the checkpoint says so of all layers")

    def _by_tensors(
        self, facts: LayerFacts, weights: Sequence[StoredWeight], listed: Match[None] | None
    ) -> Decision:
        """Return what the stored tensors say; note where the JSON says something else."""
        readings = [read_weight(stored, self.specs) for stored in weights]
        errors = [reading.error for reading in readings if reading.error]
        if len({reading.spec for reading in readings}) > 1:
            errors = errors or [_disagreement(weights, readings)]
        if errors:
            wrong = [w for w, reading in zip(weights, readings, strict=True) if reading.error]
            todo = advice([self._fitting(stored) for stored in wrong]) if wrong else ALIKE
            return Decision.refused("; ".join(errors), HEADERS, todo)
        spec, dtype = readings[0].spec, weights[0].weight.dtype
        if spec is None:
            is_matrix = len(weights[0].weight.shape) > 1 and not facts.is_router
            if not listed and is_matrix and facts.kind in ("linear", "experts"):
                self.contradictions.add(
                    facts.prefix, f"stored as {dtype}, though no entry leaves it out"
                )
            return Decision.unquantized(
                f"the file stores it as {dtype}", listed.source if listed else HEADERS
            )
        return self._by_scales(facts, weights, spec, listed)

    def words_for(self, tile: QuantSpec) -> str:
        """Return how the JSON would say that scales are for such tiles; "" where it cannot."""
        return ""

    def _fitting(self, stored: StoredWeight) -> list[str]:
        """Return the settings that the scale of an fp8 weight fits."""
        if stored.scale is None or not is_fp8(stored.weight.dtype):
            return []
        tiles = fitting_tiles(self.specs[0].element, stored.weight, stored.scale[1])
        return [words for tile in tiles if (words := self.words_for(tile))]

    def _by_scales(
        self,
        facts: LayerFacts,
        weights: Sequence[StoredWeight],
        spec: QuantSpec,
        listed: Match[None] | None,
    ) -> Decision:
        dtype = weights[0].weight.dtype
        if self.activation_scheme == "static":
            missing = [stored.name for stored in weights if not stored.has_input_scale]
            if missing:
                names = ", ".join(f"{name}.input_scale" for name in missing)
                return Decision.refused(
                    f"activation_scheme is 'static' and {names} is missing", HEADERS
                )
        elif any(stored.has_input_scale for stored in weights):
            self.contradictions.add(
                facts.prefix,
                "stored with an input scale, which is not used: activation_scheme is 'dynamic'",
            )
        if listed:
            self.contradictions.add(
                facts.prefix, f"stored as {dtype}, though {listed.source} leaves it out"
            )
        if not self._expects(spec):
            self.contradictions.add(facts.prefix, f"stored as {spec}, though {self._said(spec)}")
        return self._quantized(spec, f"the file stores it as {dtype} with scales", HEADERS)

    def _said(self, spec: QuantSpec) -> str:
        """Return the field that ``spec`` contradicts."""
        return self._stated

    def _expects(self, spec: QuantSpec) -> bool:
        """Return whether ``spec`` is what the JSON says or leaves open."""
        return spec == self.specs[0]

    def _quantized(self, weight: QuantSpec, because: str, source: str = "") -> Decision:
        if weight not in self._schemes:
            scheme = Scheme(weight=weight, activation=self.activation_for(weight))
            self._schemes[weight] = self.executed(scheme)
        return Decision.quantized(self._schemes[weight], because, source or self._stated)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight, its scale, and the scale of its input where there is one."""
        if self.is_online:
            return super().slots(scheme, n, k, facts)
        return fp8_slots(scheme, n, k, facts, self.scale_dtypes)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes and scales as the file has them; or quantize, where online."""
        if self.is_online:
            return super().decode(scheme, stored, facts)
        return decode_fp8(scheme, stored)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of the ignore lists that have matched no layer so far."""
        return (*super().unmatched(), *self._ignored.unmatched())

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided against the JSON."""
        return (*super().notes(), *self.contradictions.notes)


def _disagreement(weights: Sequence[StoredWeight], readings: Sequence[Reading]) -> str:
    told = "; ".join(
        f"{stored.name} is {reading.spec or stored.weight.dtype}"
        for stored, reading in zip(weights, readings, strict=True)
    )
    return f"the parts of one layer are stored differently: {told}"
