"""The quantized layers of an input: what is stored of each, and its weight as it is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from quantdock.checkpoint import Checkpoint, QuantizationBlock, TensorEntry
from quantdock.checkpoint.scope import covers
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.convert.part import Part, copy
from quantdock.convert.stacked import Pieces, take_apart
from quantdock.errors import ConfigError, few
from quantdock.loading.fill import gather
from quantdock.loading.left_over import require_codes_read
from quantdock.loading.sources import Sources
from quantdock.methods.pending import PendingWeights
from quantdock.methods.sound_scales import require_sound
from quantdock.numerics import CanonicalWeight, join
from quantdock.plan.stored_layers import StoredLayer, stored_model
from quantdock.registry import choose_method
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

_INDEX = "g_idx"  # how the name of an index of groups ends
_SHAPE = "weight_shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedLayer:
    """One quantized layer [n, k]; ``stored`` maps slot names to the tensors that fill them.

    ``experts``: the pieces of each, where the tensors hold all experts of a module.
    """

    facts: LayerFacts
    scheme: Scheme
    n: int
    k: int
    stored: Mapping[str, TensorEntry]
    experts: tuple[Pieces, ...] = ()

    @property
    def prefix(self) -> str:
        """Return the layer's name."""
        return self.facts.prefix

    @property
    def codes(self) -> TensorEntry:
        """Return the largest of its tensors."""
        return max(self.stored.values(), key=lambda entry: entry.num_bytes)

    def called(self, last: str) -> str:
        """Return the name of a tensor that is written for it; a stacked weight goes by its own."""
        is_joined = bool(self.experts) and not self.codes.name.startswith(f"{self.prefix}.")
        return self.prefix if is_joined and last == "weight" else f"{self.prefix}.{last}"


class CodedModel:
    """All quantized layers of a checkpoint; ``method`` is the name of how they are stored."""

    def __init__(self, checkpoint: Checkpoint, block: QuantizationBlock) -> None:
        """Find the layers.

        Raises:
            QuantDockError: the method cannot be read yet, or a layer contradicts itself.
        """
        choice = choose_method("none", block, "cpu")
        assert choice.block is not None, "a quantized checkpoint has its block"
        self.method = choice.name
        self.config = choice.config_class.from_config(choice.block)
        self.tensors = checkpoint.tensors
        self._sources = Sources(checkpoint.tensors)
        self.all_layers = stored_model(checkpoint.tensors).layers
        self.layers = tuple(self._find(block.scope))
        self._notes = choice.notes

    def notes(self) -> Iterator[str]:
        """Yield what a user should know of how the input was read."""
        yield from (*self._notes, *self.config.notes())
        if (kept := self.config.kv_cache_spec()) is not None:
            yield f"that keys and values are kept in {kept} is left out"
        if scales := self._kv_scales():
            yield f"scales of the KV cache are left out: {few(scales, 3)}"

    def read(self, layer: CodedLayer) -> CanonicalWeight:
        """Return the weight of a layer, as it is meant.

        Raises:
            LoadError: a tensor is missing, or a scale is no number that a weight can have.
        """
        slots = self.config.slots(layer.scheme, layer.n, layer.k, layer.facts)
        pending = PendingWeights(layer.prefix, [slots])
        gather(pending, layer.prefix, self._sources, torch.device("cpu"))
        taken = pending.take()
        weight = self.config.decode(layer.scheme, taken, layer.facts)
        require_sound(weight, taken, pending, layer.facts)
        return weight

    def read_stored(self, layer: CodedLayer, slot: str) -> Tensor:
        """Return the tensor that fills a slot of a layer, as it is stored."""
        return self._sources.read(layer.stored[slot].name)

    def read_expert(self, layer: CodedLayer, expert: int) -> CanonicalWeight:
        """Return the weight of one expert of a layer that holds all of a module."""
        pieces = (
            replace(layer, facts=facts, n=shape[0], k=shape[1], experts=())
            for facts in layer.experts[expert]
            for shape in (self.config.weight_shape(layer.scheme, facts),)
        )
        return join([self.read(piece) for piece in pieces])

    def rewritten(
        self,
        describe: Callable[[CodedLayer], Mapping[str, StoredTensor]],
        make: Callable[[CodedLayer], Mapping[str, Tensor]],
    ) -> tuple[Part, ...]:
        """Return the parts of a checkpoint that has other tensors for its quantized layers.

        Args:
            describe: names and kinds of the tensors for a layer, by what follows its prefix.
            make: returns them.
        Raises:
            LoadError: a tensor of the quantization belongs to no layer that was found.
        """
        made: dict[str, Part | None] = dict.fromkeys(self._kv_scales())
        for layer in self.layers:
            entries = layer.stored.values()
            part = Part(
                outputs={layer.called(last): t for last, t in describe(layer).items()},
                file=layer.codes.file,
                num_bytes=sum(entry.num_bytes for entry in entries),
                make=partial(_under, layer, make),
            )
            made |= {entry.name: part if entry is layer.codes else None for entry in entries}
        self._sources.mark(made)
        require_codes_read(self._sources, {name.rpartition(".")[0] for name in self.tensors})
        parts = (made[name] if name in made else copy(e) for name, e in self.tensors.items())
        return tuple(part for part in parts if part is not None)

    def _find(self, scope: str) -> Iterator[CodedLayer]:
        for layer in self.all_layers:
            if not covers(scope, layer.facts.prefix):
                continue
            decision = self.config.scheme_for(layer.asked)
            self.config.refuse(decision, layer.facts)
            if decision.scheme is not None and layer.layout.is_quantized:
                yield self._coded(layer, decision.scheme)

    def _coded(self, layer: StoredLayer, scheme: Scheme) -> CodedLayer:
        under = self._sources.under(layer.facts.prefix)
        facts, stack = layer.facts, layer.layout.stack
        shape = self.config.weight_shape(scheme, layer.asked)
        if len(shape) == 2 and stack is not None:
            return self._stacked(layer, scheme, (stack.number, stack.halves * shape[0], shape[1]))
        if len(shape) != 2:
            whole = self.config.weight_shape(scheme, facts)
            raise ConfigError(
                f"{facts.prefix} cannot be converted: its weight has shape {list(whole)}.",
                why=["a weight is a matrix, or one for each expert"],
                todo="Decode it while loading: quantdock.load(IN, quantization='none'), and "
                "save_pretrained of that.",
            )
        n, k = self._true_shape(facts, shape)
        slots = self.config.slots(scheme, n, k, facts)
        spellings = {slot.name: slot.stored_as(under) for slot in slots}
        stored = {name: under[said] for name, said in spellings.items() if said is not None}
        scheme = self._in_order(scheme, stored)
        return CodedLayer(facts=facts, scheme=scheme, n=n, k=k, stored=stored)

    def _stacked(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, ...]) -> CodedLayer:
        """Return the layer of all experts of a module, whose shape is [experts, n, k]."""
        number, n, k = shape
        whole, experts = take_apart(self._sources, layer.facts, number)
        pieces = experts[0]
        slots = (slot for p in pieces for slot in self.config.slots(scheme, n, k, p))
        read = {said for slot in slots if (said := slot.stored_as(whole)) is not None}
        stored = {part: entry for part, entry in whole.items() if part in read}
        return CodedLayer(
            facts=layer.facts, scheme=scheme, n=n, k=k, stored=stored, experts=experts
        )

    def _true_shape(self, facts: LayerFacts, shown: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a file states in a tensor; packed words show K rounded up."""
        entry = self._sources.under(facts.prefix).get(_SHAPE)
        return shown if entry is None else tuple(self._sources.read(entry.name).tolist())

    def _in_order(self, scheme: Scheme, stored: Mapping[str, TensorEntry]) -> Scheme:
        """Return ``scheme`` with act-order where the stored index of groups really is another."""
        entry = next((e for name, e in stored.items() if name.endswith(_INDEX)), None)
        spec = scheme.weight
        if entry is None or spec.cols is None:
            return scheme
        index = self._sources.read(entry.name)
        in_a_row = torch.arange(index.numel(), dtype=index.dtype) // spec.cols
        act_order = not torch.equal(index, in_a_row)
        return replace(scheme, weight=replace(spec, act_order=act_order))

    def _kv_scales(self) -> list[str]:
        used = {entry.name for layer in self.layers for entry in layer.stored.values()}
        return [name for name in self.tensors if name not in used and is_kv_scale(name)]


def _under(
    layer: CodedLayer, make: Callable[[CodedLayer], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    return {layer.called(last): tensor for last, tensor in make(layer).items()}
