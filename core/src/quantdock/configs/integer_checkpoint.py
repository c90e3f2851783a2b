"""IntegerCheckpointConfig: what all configs of integer checkpoints share. Subclasses read the JSON.

Where headers were read, a layer is quantized if its codes are stored and plain if a float weight
is; where they and the JSON disagree, the tensors decide, and a note says so.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from quantdock.config import QuantizationConfig
from quantdock.configs.contradictions import Contradictions
from quantdock.configs.header_check import Misfit, remedy
from quantdock.configs.matcher import Entry, Match, Matcher
from quantdock.configs.pattern import COMPONENTS, Dialect
from quantdock.configs.stored import HEADERS
from quantdock.formats import DTYPES
from quantdock.schemes import (
    UNSTATED,
    Decision,
    KVCacheDecision,
    LayerFacts,
    Scheme,
    StoredTensor,
)
from quantdock.schemes.decision import ALIKE

# Kinds of layer that stay plain unless the file stores them quantized or the JSON says so.
_PLAIN = frozenset({"embedding", "head"})


class IntegerCheckpointConfig(QuantizationConfig):
    """A checkpoint of integer codes with scales.

    Attributes:
        codes: the tensor that holds a layer's codes, in a dtype that is no float.
        quantized_kinds: kinds that are quantized without headers saying so, besides linear layers
            and experts.
        extra: fields of the JSON that are not used, kept as they are.
        contradictions: where tensors decided against the JSON.
    """

    codes: ClassVar[str] = "weight"
    dialect: ClassVar[Dialect] = COMPONENTS

    def __init__(
        self,
        *,
        ignored: Sequence[Entry[None]] = (),
        quantized_kinds: frozenset[str] = frozenset(),
        kv_cache: KVCacheDecision = UNSTATED,
        stated: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.kv_cache = kv_cache
        self.quantized_kinds = quantized_kinds
        self.extra = dict(extra or {})
        self._ignored = Matcher(ignored, self.dialect)
        self._stated = stated or f"quant_method = {self.name!r}"
        self.contradictions = Contradictions(self.name)
        self._misfits: dict[object, Misfit | None] = {}  # by scheme and headers

    @abstractmethod
    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme of a layer that is quantized, per-layer overrides included."""

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the file makes of a layer."""
        return self.decide(facts, self._ignored.find(facts, self.packed_modules_mapping))

    def decide(self, facts: LayerFacts, listed: Match[None] | None) -> Decision:
        """Return what the file makes of a layer; ``listed`` is the entry that leaves it out."""
        if facts.kind == "attention":
            return Decision.unquantized("attention has no weights of its own", self._stated)
        parts = _parts(facts)
        coded = [name for name, tensors in parts.items() if self._has_codes(tensors)]
        plain = [name for name, tensors in parts.items() if _has_floats(tensors)]
        if coded and plain:
            because = (
                f"the parts of one layer are stored differently: {', '.join(coded)} as "
                f"{self.codes} and {', '.join(plain)} as a plain weight"
            )
            return Decision.refused(because, HEADERS, ALIKE)
        if coded:
            if listed:
                what = f"stored with {self.codes}, though {listed.source} leaves it out"
                self.contradictions.add(facts.prefix, what)
            return self._executed(self._fitting(facts, {name: parts[name] for name in coded}))
        if plain:
            return self._plain(facts, parts[plain[0]]["weight"], listed)
        return self._by_json(facts, listed)

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return why the headers of one shard or expert contradict ``scheme``; None: they do not.

        Dialects that pack their codes override this.
        """
        return None

    def _fitting(
        self, facts: LayerFacts, parts: Mapping[str, Mapping[str, StoredTensor]]
    ) -> Decision:
        """Return the usual decision, or an error where the headers contradict it."""
        usual = self.usual(facts)
        if usual.scheme is None:
            return usual
        found = {name: self._known_misfit(usual.scheme, part) for name, part in parts.items()}
        wrong = {name: misfit for name, misfit in found.items() if misfit is not None}
        if not wrong:
            return usual
        because = "; ".join(misfit.told(name) for name, misfit in wrong.items())
        return Decision.refused(because, usual.source, remedy(wrong.values()))

    def _known_misfit(self, scheme: Scheme, part: Mapping[str, StoredTensor]) -> Misfit | None:
        # A large model has 50,000 layers, and ten kinds of them.
        key = (scheme, *part.items())
        if key not in self._misfits:
            self._misfits[key] = self.misfit(scheme, part)
        return self._misfits[key]

    def _has_codes(self, tensors: Mapping[str, StoredTensor]) -> bool:
        return self.codes in tensors and not DTYPES[tensors[self.codes].dtype].floating

    def _plain(
        self, facts: LayerFacts, weight: StoredTensor, listed: Match[None] | None
    ) -> Decision:
        is_matrix = len(weight.shape) > 1 and not facts.is_router  # no tool quantizes routers
        if not listed and is_matrix and facts.kind in ("linear", "experts"):
            what = f"stored as {weight.dtype}, though no entry leaves it out"
            self.contradictions.add(facts.prefix, what)
        source = listed.source if listed else HEADERS
        return Decision.unquantized(f"the file stores it as {weight.dtype}", source)

    def _by_json(self, facts: LayerFacts, listed: Match[None] | None) -> Decision:
        if listed:
            if listed.conflict:
                return Decision.refused(listed.conflict, listed.source, ALIKE)
            return Decision.unquantized("the checkpoint lists it as unquantized", listed.source)
        if facts.kind in _PLAIN and facts.kind not in self.quantized_kinds:
            because = f"the {facts.kind} is plain unless the file stores it quantized"
            return Decision.unquantized(because, self._stated)
        return self._executed(self.usual(facts))

    def _executed(self, decision: Decision) -> Decision:
        if decision.scheme is None:
            return decision
        scheme = self.executed(decision.scheme)
        if scheme is decision.scheme:
            return decision
        return Decision.quantized(scheme, decision.because, decision.source)

    def executed(self, scheme: Scheme) -> Scheme:
        """Return what runs for ``scheme``: itself, unless a platform's config overrides this."""
        return scheme

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of the ignore lists that have matched no layer so far."""
        return (*super().unmatched(), *self._ignored.unmatched())

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided against the JSON."""
        return (*super().notes(), *self.contradictions.notes)


def _parts(facts: LayerFacts) -> dict[str, dict[str, StoredTensor]]:
    """Return what is stored for each part of a layer: the layer itself, its shards or experts."""
    parts: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for key, tensor in (facts.stored or {}).items():
        part, _, last = key.rpartition(".")
        parts[part or facts.prefix][last] = tensor
    return parts


def _has_floats(tensors: Mapping[str, StoredTensor]) -> bool:
    return "weight" in tensors and DTYPES[tensors["weight"].dtype].floating
