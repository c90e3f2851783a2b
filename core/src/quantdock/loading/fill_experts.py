"""From files into the quantized experts of one layer: an expert at a time, each freed at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from quantdock.errors import LoadError, few
from quantdock.layers.fused_moe import FusedMoE
from quantdock.loading.expert_slices import usual_name
from quantdock.loading.fill import gather
from quantdock.loading.misfits import find_misfits
from quantdock.loading.sources import Sources
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts


def fill_experts(
    layer: FusedMoE, sources: Sources, device: torch.device, lenient: bool = False
) -> None:
    """Read, decode and prepare the experts of ``layer`` on ``device``, one after another.

    Args:
        lenient: take scales that are NaN, infinite or negative.
    Raises:
        LoadError: a required tensor is missing, or one has a wrong shape or dtype.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedExpertsMethod):
        return
    method.requires_sound_scales = not lenient
    _mark_others(layer, method, sources)
    try:
        for expert in range(method.num_experts):
            for matrix in method.matrices:
                for shard, facts in enumerate(matrix.facts[expert]):
                    gather(matrix.pending[expert], facts.prefix, sources, device, shard)
            method.finish_expert(layer, expert)
        method.process_weights_after_loading(layer)
    finally:
        method.discard()  # what came for an expert that failed


def check_experts(
    layer: FusedMoE, sources: Sources, device: torch.device, lenient: bool = False
) -> None:
    """Read, decode and prepare what ``fill_experts`` would, and change nothing.

    Raises:
        LoadError: as ``fill_experts``.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedExpertsMethod):
        return
    method.requires_sound_scales = not lenient
    _mark_others(layer, method, sources)
    for expert in range(method.num_experts):
        arrived = [matrix.pending[expert].fresh() for matrix in method.matrices]
        for matrix, pending in zip(method.matrices, arrived, strict=True):
            for shard, facts in enumerate(matrix.facts[expert]):
                gather(pending, facts.prefix, sources, device, shard)
        method.check_expert(layer, expert, arrived)


def _mark_others(layer: FusedMoE, method: QuantizedExpertsMethod, sources: Sources) -> None:
    """Note as used what other ranks' experts store, by the names of this rank's first."""
    for other in layer.others:
        for matrix, shards in zip(method.matrices, (other.w13, other.w2), strict=True):
            for facts, slots in zip(shards, matrix.pending[0].slots, strict=True):
                under = sources.under(facts.prefix)
                spellings = (slot.stored_as(under) for slot in slots)
                sources.mark(under[s].name for s in spellings if s is not None)


def missing_expert_tensors(layer: FusedMoE, sources: Sources) -> Iterator[str]:
    """Yield the tensors that an expert needs and no file stores, by their usual names.

    Where experts are stacked, by the name of the tensor of all.
    """
    for facts, slots in _stored_slots(layer):
        under = sources.under(facts.prefix)
        for slot in slots:
            if slot.default is None and slot.stored_as(under) is None:
                yield usual_name(facts.prefix, slot.name, under)


def require_fitting_experts(layers: Iterable[object], sources: Sources) -> None:
    """Raise where headers show that a tensor does not fit into its expert, of any of ``layers``.

    Raises:
        LoadError: names tensors as the file has them, and the experts.
    """
    wrong: dict[str, str] = {}
    for layer in layers:
        for facts, slots in _stored_slots(layer) if isinstance(layer, FusedMoE) else ():
            found = find_misfits(facts.prefix, slots, sources.under(facts.prefix))
            wrong = found | wrong  # the first of several experts tells
    if wrong:
        raise LoadError(
            f"Tensors of experts do not fit the model: {few([*wrong])}.",
            why=[few([*wrong.values()], separator="; ")],
            todo="Load the checkpoint that belongs to this model's config.",
            names=tuple(wrong),
        )


def _stored_slots(layer: FusedMoE) -> Iterator[tuple[LayerFacts, tuple[Slot, ...]]]:
    """Yield the slots of every shard of the experts of ``layer``."""
    method = layer.quant_method
    for matrix in method.matrices if isinstance(method, QuantizedExpertsMethod) else ():
        for pending, shards in zip(matrix.pending, matrix.facts, strict=True):
            yield from zip(shards, pending.slots, strict=True)
