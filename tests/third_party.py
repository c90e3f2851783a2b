"""Checkpoints that third-party tools wrote: their tensors, and the weights they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.methods.cut import Cut, cut_weight, parts_of
from quantdock.methods.pending import PendingWeights
from quantdock.numerics.canonical import CanonicalWeight
from quantdock.schemes import LayerFacts, Scheme, StoredTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One layer of a checkpoint as we decode it, and ``real`` as its own tool does."""

    prefix: str
    facts: LayerFacts
    tensors: dict[str, Tensor]
    scheme: Scheme
    weight: CanonicalWeight
    real: Tensor


def block_of(folder: Path) -> dict[str, Any]:
    """Return the quantization block of config.json."""
    block: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return block


def decoded_layers(config: QuantizationConfig, folder: Path) -> Iterator[Decoded]:
    """Yield the layers for which the folder has the weight that its tool dequantized."""
    tensors = load_file(folder / "model.safetensors")
    for name, real in load_file(folder / "golden.safetensors").items():
        if not name.startswith("dequant."):
            continue
        prefix = name.removeprefix("dequant.").removesuffix(".weight")
        under = {
            full.removeprefix(f"{prefix}."): tensor
            for full, tensor in tensors.items()
            if full.startswith(f"{prefix}.")
        }
        facts = LayerFacts(prefix=prefix, stored=headers(under))
        scheme = config.scheme_for(facts).scheme
        assert scheme is not None
        weight = decode(config, scheme, under, facts)
        yield Decoded(
            prefix=prefix, facts=facts, tensors=under, scheme=scheme, weight=weight, real=real
        )


def headers(tensors: dict[str, Tensor]) -> dict[str, StoredTensor]:
    """Return what the file's header would say of ``tensors``."""
    return {
        name: StoredTensor(
            dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape)
        )
        for name, tensor in tensors.items()
    }


def decode(
    config: QuantizationConfig, scheme: Scheme, tensors: dict[str, Tensor], facts: LayerFacts
) -> CanonicalWeight:
    """Return the weight that one layer's ``tensors`` stand for, taken as loading takes them."""
    n, k = config.weight_shape(scheme, facts)
    taken = {}
    for slot in config.slots(scheme, n, k, facts):
        spelling = slot.stored_as(tensors)
        assert spelling is not None, f"{slot.name} is not stored"
        tensor = tensors[spelling]
        assert tuple(tensor.shape) in slot.shapes, f"{spelling}: {tuple(tensor.shape)}"
        assert str(tensor.dtype).removeprefix("torch.") in slot.dtypes, spelling
        taken[slot.name] = tensor.reshape(slot.shape)
    return config.decode(scheme, [taken], facts)


def decode_part(
    config: QuantizationConfig,
    scheme: Scheme,
    tensors: dict[str, Tensor],
    facts: LayerFacts,
    cut: Cut,
) -> CanonicalWeight:
    """Return what a rank that holds ``cut`` has of the weight, read as little as may be."""
    slots = config.slots(scheme, cut.n, cut.k, facts)
    regions = parts_of(slots, cut, scheme.weight, is_online=False)
    pending = PendingWeights(facts.prefix, [slots], [] if regions is None else [regions])
    for slot in slots:
        spelling = slot.stored_as(tensors)
        assert spelling is not None
        pending.add(slot.name, tensors[spelling])
    weight = config.decode(scheme, pending.take(), facts)
    return cut_weight(weight, [cut]) if regions is None else weight
