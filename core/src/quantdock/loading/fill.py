"""From files into one quantized layer, or into the dense weight it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from quantdock.checkpoint.header import TensorEntry
from quantdock.config import QuantizationConfig
from quantdock.errors import LoadError
from quantdock.layers import LinearBase, MergedStore
from quantdock.loading.expert_slices import usual_name
from quantdock.loading.misfits import find_misfits
from quantdock.loading.shapes import require_shape
from quantdock.loading.sources import Sources
from quantdock.methods.pending import PendingWeights
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.methods.sound_scales import require_sound
from quantdock.methods.written import written
from quantdock.schemes import LayerFacts, Scheme

_ANY_SHAPE = (64, 64)  # of a weight whose first slot is asked for, the tensor of its codes


def fill_layer(
    layer: LinearBase | MergedStore, sources: Sources, device: torch.device, lenient: bool = False
) -> None:
    """Read the slots of a layer's shards, finish it on ``device`` and free what was read.

    An unquantized layer has no slots; its weight is read like any plain tensor. So is a bias, but
    for that of a store, which is made of its shards'.

    Args:
        lenient: take scales that are NaN, infinite or negative.

    Raises:
        LoadError: a required tensor is missing, one has a wrong shape or dtype, or a scale is not
            sound.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        return
    method.requires_sound_scales = not lenient
    try:
        for shard, prefix in enumerate(shards_of(layer)):
            gather(method.pending, prefix, sources, device, shard)
        bias = _read_bias(layer, sources, device) if isinstance(layer, MergedStore) else None
        method.process_weights_after_loading(layer)
        if bias is not None:
            layer.bias = written(layer.bias, bias)
        if isinstance(layer, MergedStore):
            layer.forget()
    finally:
        method.pending.discard()  # of a load that failed; else there is nothing


def check_layer(
    layer: LinearBase | MergedStore, sources: Sources, device: torch.device, lenient: bool = False
) -> None:
    """Read, decode and prepare what ``fill_layer`` would, and change nothing.

    Raises:
        LoadError: as ``fill_layer``.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        return
    method.requires_sound_scales = not lenient
    pending = method.pending.fresh()
    for shard, prefix in enumerate(shards_of(layer)):
        gather(pending, prefix, sources, device, shard)
    if isinstance(layer, MergedStore):
        _read_bias(layer, sources, device)
    method.check(pending)


def missing_tensors(layer: LinearBase | MergedStore, sources: Sources) -> list[str]:
    """Return the tensors that a layer needs and no file stores, by their usual names."""
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        return []
    missing = []
    for prefix, slots in zip(shards_of(layer), method.pending.slots, strict=True):
        under = sources.under(prefix)
        needed = [s.name for s in slots if s.default is None and s.stored_as(under) is None]
        if isinstance(layer, MergedStore) and layer.bias is not None and "bias" not in under:
            needed.append("bias")
        missing += [f"{prefix}.{name}" for name in needed]
    return missing


def shards_of(layer: LinearBase | MergedStore) -> tuple[str, ...]:
    """Return the checkpoint prefix of each shard of a layer."""
    return layer.facts.shards or (layer.facts.prefix,)


def gather(
    pending: PendingWeights, prefix: str, sources: Sources, device: torch.device, shard: int = 0
) -> None:
    """Read every slot of one shard that the file stores, under whichever spelling."""
    under = sources.under(prefix)
    for slot in pending.slots[shard]:
        spelling = slot.stored_as(under)
        if spelling is None:
            continue
        region = pending.parts[shard].get(slot.name, ())
        if region and under[spelling].shape == slot.shape:
            part = sources.read(f"{prefix}.{spelling}", device, region)
            pending.add_part(spelling, part, shard)
        else:
            pending.add(spelling, sources.read(f"{prefix}.{spelling}", device), shard)


def _read_bias(store: MergedStore, sources: Sources, device: torch.device) -> Tensor | None:
    """Return the bias [N] of all shards of a store.

    Raises:
        LoadError: one of them has another size than its layer.
    """
    if store.bias is None:
        return None
    parts = [
        require_shape(f"{prefix}.bias", sources.read(f"{prefix}.bias", device), (len(rows),))
        for prefix, rows in zip(store.facts.shards, store.rows, strict=True)
    ]
    return torch.cat(parts).to(store.params_dtype)


def read_dense(
    config: QuantizationConfig,
    scheme: Scheme,
    facts: LayerFacts,
    sources: Sources,
    dtype: torch.dtype,
    device: torch.device,
    lenient: bool = False,
) -> Tensor:
    """Return the dense weight [N, K] that the tensors under ``facts.prefix`` stand for.

    Raises:
        LoadError: the codes are missing or are no matrix, another tensor is missing or does not
            fit, or a scale is not sound.
    """
    under = sources.under(facts.prefix)
    facts = replace(facts, stored={part: entry.stored for part, entry in under.items()})
    n, k = _matrix_shape(config, scheme, facts, under)
    taken = (slot.stored_as(under) for slot in config.slots(scheme, n, k, facts))
    sources.mark(under[spelling].name for spelling in taken if spelling is not None)
    scheme = scheme.weight_only()  # what is stored of the input has no say, and may be missing
    slots = config.slots(scheme, n, k, facts)
    if wrong := find_misfits(facts.prefix, slots, under):
        raise _undecodable(facts, wrong)
    pending = PendingWeights(facts.prefix, [slots])
    gather(pending, facts.prefix, sources, device)
    arrived = pending.take()
    weight = config.decode(scheme, arrived, facts)
    if not lenient:
        require_sound(weight, arrived, pending, facts)
    return weight.dense(dtype)


def _matrix_shape(
    config: QuantizationConfig, scheme: Scheme, facts: LayerFacts, under: Mapping[str, TensorEntry]
) -> tuple[int, ...]:
    """Return the shape (N, K) that the codes stored under ``facts.prefix`` show."""
    shape = config.weight_shape(scheme, facts)
    if len(shape) == 2:
        return shape
    codes = config.slots(scheme, *_ANY_SHAPE, facts)[0]
    last = codes.stored_as(under)
    name = usual_name(facts.prefix, codes.name, under) if last is None else under[last].name
    what = "in no file" if last is None else f"{list(under[last].shape)}, not a matrix"
    raise _undecodable(facts, {name: f"{name} is {what}"})


def _undecodable(facts: LayerFacts, wrong: Mapping[str, str]) -> LoadError:
    """Return the error for tensors of a weight that are ``wrong``, by their names in the file."""
    return LoadError(
        f"The weight of {facts.prefix} cannot be decoded.",
        why=[*wrong.values()],
        todo="The checkpoint is incomplete, or was written by another method than it says.",
        names=tuple(wrong),
    )
