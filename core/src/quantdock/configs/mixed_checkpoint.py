"""MixedCheckpointConfig: a checkpoint whose layers are encoded in several ways, a reader for each.

A dialect that can say something else of each layer is a table from its words to readers. Which
reader a layer has is decided by its name, then by its class, then by what is said of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from quantdock.config import QuantizationConfig
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.header_check import Misfit
from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.configs.matcher import Entry, Match, Matcher
from quantdock.configs.pattern import CLASSES, ROOTED, Dialect
from quantdock.configs.stored import stored_weights
from quantdock.errors import ConfigError
from quantdock.formats import QuantSpec
from quantdock.methods.header_faults import HeaderFault, slot_faults
from quantdock.methods.slot import Slot
from quantdock.schemes import (
    UNSTATED,
    Decision,
    KVCacheDecision,
    LayerFacts,
    Scheme,
    StoredTensor,
)
from quantdock.schemes.decision import ALIKE

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight

# Reads layers that are encoded alike; None stands for layers that are not quantized.
Reader: TypeAlias = Fp8CheckpointConfig | IntegerCheckpointConfig
_LINEAR = "Linear"


class Fp8Layers(Fp8CheckpointConfig):
    """Reads the fp8 layers of a mixed checkpoint; what the headers show decides, as in all fp8.

    Its subclasses, and those of ``IntegerLayers``, have the name of the dialect they read for.
    """

    def __init__(self, weight: QuantSpec, activation: QuantSpec | None, stated: str) -> None:
        specs = [weight]
        if weight.granularity in ("tensor", "channel"):
            specs += [replace(weight, rows=rows) for rows in (None, 1)]
        is_static = activation is not None and not activation.dynamic
        super().__init__(
            tuple(dict.fromkeys(specs)),
            activation_scheme="static" if is_static else "dynamic",
            stated=stated,
        )
        self._activation = activation

    def activation_for(self, weight: QuantSpec) -> QuantSpec | None:
        """Return how activations are encoded, whatever the weights turn out to be."""
        return self._activation


class IntegerLayers(IntegerCheckpointConfig):
    """Reads the integer layers of a mixed checkpoint, all of one scheme; subclasses decode."""

    def __init__(self, scheme: Scheme, stated: str) -> None:
        super().__init__(stated=stated)
        self.scheme = scheme

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Refuse: these are some layers of a checkpoint, which is described as a whole."""
        raise ConfigError(
            f"{cls.__name__} reads some layers of a {cls.name} checkpoint.",
            why=["the checkpoint is described as a whole"],
            todo=f"Ask for {cls.name}.",
        )

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the one scheme of these layers."""
        return Decision.quantized(self.scheme, "the checkpoint says so", self._stated)

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return which of the tensors of one module are not those of ``scheme``."""
        facts = LayerFacts(prefix=self.name, stored=tensors)
        shape, found = _header_faults(self, scheme, facts)
        faults = tuple(fault for fault in found if fault.kind != "missing")  # loading names them
        if not faults:
            return None
        fitting = (self._fitting_words(others, facts) for others in self.said_otherwise())
        stated = f"{scheme.weight} {list(shape)} has"
        return Misfit(faults=faults, stated=stated, fitting=next(filter(None, fitting), ()))

    def said_otherwise(self) -> Iterator[Iterator[tuple[str, IntegerLayers]]]:
        """Yield what else the block could say of such layers, the nearest first.

        Each is a way to say it, in the block's words, and what would read the layers then.
        """
        yield from ()

    def _fitting_words(
        self, others: Iterable[tuple[str, IntegerLayers]], facts: LayerFacts
    ) -> tuple[str, ...]:
        """Return the ways that all tensors of a module fit."""
        return tuple(words for words, other in others if fits(other, facts))


def fits(reader: Reader, facts: LayerFacts) -> bool:
    """Return whether the headers of a layer are what ``reader``, which reads no other, wants."""
    reader.contradictions.is_told = False
    weights = stored_weights(facts, getattr(reader, "codes", "weight"))
    modules = (LayerFacts(prefix=weight.name, stored=weight.beside) for weight in weights)
    return bool(weights) and all(_fits(reader, module) for module in modules)


def _fits(reader: Reader, facts: LayerFacts) -> bool:
    if isinstance(reader, IntegerCheckpointConfig):
        decision = reader.usual(facts)
    else:
        noted = reader.contradictions.num_found
        decision = reader.decide(facts, None)
        if reader.contradictions.num_found > noted:
            return False
    if decision.scheme is None:
        return False
    shape, faults = _header_faults(reader, decision.scheme, facts)
    return bool(shape) and not faults


def _header_faults(
    reader: Reader, scheme: Scheme, facts: LayerFacts
) -> tuple[tuple[int, ...], list[HeaderFault]]:
    """Return the shape of a module's weight and what is wrong beside it; empty: no matrix."""
    shape, tensors = reader.weight_shape(scheme, facts), facts.stored or {}
    if len(shape) != 2:
        return (), []
    slots = reader.slots(scheme, *shape, facts)
    return shape, [fault for slot in slots for fault in slot_faults(slot, tensors)]


class MixedCheckpointConfig(QuantizationConfig):
    """A checkpoint whose layers have one of several readers.

    Attributes:
        dialect: how the lists of names are read.
        extra: fields of the JSON that are not used, kept as they are.
    """

    dialect: ClassVar[Dialect] = ROOTED

    def __init__(
        self,
        usual: Match[Reader | None],
        *,
        by_name: Iterable[Entry[Reader | None]] = (),
        by_class: Iterable[Entry[Reader | None]] = (),
        ignored: Sequence[Entry[None]] = (),
        kv_cache: KVCacheDecision = UNSTATED,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.kv_cache = kv_cache
        self.extra = dict(extra or {})
        self.usual = usual
        self._by_name = Matcher(by_name, self.dialect)
        self._by_class = Matcher(by_class, CLASSES)
        self._ignored = Matcher(ignored, self.dialect)
        entries = (*self._by_name.entries, *self._by_class.entries)
        told = [usual.value, *(entry.value for entry in entries)]
        self.readers = tuple(dict.fromkeys(reader for reader in told if reader is not None))

    def told(self, facts: LayerFacts) -> Match[Reader | None] | None:
        """Return the reader that is meant for this layer by name or class, and where."""
        found = self._by_name.find(facts, self.packed_modules_mapping)
        if found is None and self._by_class.entries:
            # Experts are stored as linear layers, whatever the model builds of them.
            classes = (*facts.class_names, *([_LINEAR] if facts.kind == "experts" else []))
            found = self._by_class.find(replace(facts, class_names=classes))
        return found

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what a layer's reader makes of it; the list of those left out comes first."""
        listed = self._ignored.find(facts, self.packed_modules_mapping)
        told = self.told(facts)
        if told is not None and told.conflict and listed is None:
            return Decision.refused(told.conflict, told.source, ALIKE)
        is_told = told is not None and told.value is not None
        if is_told and facts.stored is None and facts.kind in ("embedding", "head"):
            facts = replace(facts, kind="linear")  # what names it quantizes it; headers know better
        match = told or self.usual
        reader = match.value or self._any_reader()
        if listed is None and match.value is None:
            listed = Match(value=None, source=match.source)
        decision = reader.decide(facts, listed)
        if decision.scheme is None:
            return decision
        executed = self.executed(decision.scheme)
        return decision if executed is decision.scheme else replace(decision, scheme=executed)

    def executed(self, scheme: Scheme) -> Scheme:
        """Return what runs for ``scheme``: itself, unless a platform's config overrides this."""
        return scheme

    def reader_of(self, facts: LayerFacts) -> Reader:
        """Return what reads the tensors of a layer that is stored quantized."""
        return (self.told(facts) or self.usual).value or self._any_reader()

    def _any_reader(self) -> Reader:
        return self.usual.value or self.readers[0]

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) of a layer's weight."""
        return self.reader_of(facts).weight_shape(scheme, facts)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors of one shard of a layer."""
        return self.reader_of(facts).slots(scheme, n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, by the layer's reader."""
        return self.reader_of(facts).decode(scheme, stored, facts)

    def explain_shift(self, steps: int) -> str:
        """Return what a reader knows of weights that are ``steps`` scales too large."""
        told = (reader.explain_shift(steps) for reader in self.readers)
        return next(filter(None, told), "")

    def bind(self, dispatch: Dispatch) -> Self:
        """Return self, and all readers, tied to a platform."""
        for reader in self.readers:
            reader.bind(dispatch)
        return super().bind(dispatch)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of lists and overrides that have matched no layer so far."""
        matchers = (self._ignored, self._by_name, self._by_class)
        return tuple(source for matcher in matchers for source in matcher.unmatched())

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided against the JSON."""
        notes = (note for reader in self.readers for note in reader.notes())
        return (*super().notes(), *dict.fromkeys(notes))


class ReaderCache:
    """Makes one reader for all blocks that are equal: 22,000 layers of a file name two."""

    def __init__(self, make: Callable[[Any, str], Reader | None]) -> None:
        self._make = make
        self._made: dict[str, Reader | None] = {}

    def reader(self, block: Any, source: str) -> Reader | None:
        """Return the reader of ``block``, which stands at ``source``."""
        key = repr(block)
        if key not in self._made:
            self._made[key] = self._make(block, source)
        return self._made[key]
