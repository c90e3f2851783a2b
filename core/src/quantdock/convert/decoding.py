"""--to none: every quantized layer of a checkpoint becomes a plain weight again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantdock.checkpoint import Checkpoint, QuantizationBlock
from quantdock.checkpoint.metadata import SIDE_FILES
from quantdock.checkpoint.model_facts import stated_dtype
from quantdock.checkpoint.scope import covers
from quantdock.config import QuantizationConfig
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.convert.part import Part, copy
from quantdock.errors import ConfigError, few
from quantdock.formats import DTYPES
from quantdock.loading.fill import read_dense
from quantdock.loading.sources import Sources
from quantdock.numerics import torch_dtype
from quantdock.plan.stored_layers import StoredLayer, stored_model
from quantdock.registry import choose_method
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

_USUAL = "bfloat16"
_KEYS = ("quantization_config", "compression_config")
# Side files that say how weights are quantized.
BLOCK_FILES = frozenset(name for name, _, _ in SIDE_FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The parts of the decoded checkpoint, and what became of the rest."""

    parts: tuple[Part, ...]
    num_layers: int
    notes: tuple[str, ...]


def decode_checkpoint(checkpoint: Checkpoint, block: QuantizationBlock) -> Decoded:
    """Return the parts that make plain weights of every quantized layer.

    Raises:
        QuantDockError: the method cannot be read yet, a layer contradicts itself, or a tensor of
            the quantization belongs to nothing that was decoded.
    """
    choice = choose_method("none", block, "cpu")
    assert choice.block is not None, "a quantized checkpoint has its block"
    config = choice.config_class.from_config(choice.block)
    sources = Sources(checkpoint.tensors)
    dtype = _plain_dtype(checkpoint.config)
    made: dict[str, Part | None] = {}  # tensor -> the part that stands in its place
    count = 0
    for layer in stored_model(checkpoint.tensors).layers:
        scheme = _scheme(layer, config, block.scope)
        if scheme is not None:
            made |= _decoded(layer, scheme, config, sources, dtype)
            count += 1
    scales = [name for name in checkpoint.tensors if name not in made and is_kv_scale(name)]
    made |= dict.fromkeys(scales)
    sources.mark(made)
    sources.check_left_over({name.rpartition(".")[0] for name in checkpoint.tensors})
    parts = [
        made[name] if name in made else copy(entry) for name, entry in checkpoint.tensors.items()
    ]
    notes = [*choice.notes, *config.notes(), f"decoded from {choice.name} to {dtype}"]
    if scales:
        notes.append(f"scales of the KV cache are left out: {few(scales, 3)}")
    return Decoded(
        parts=tuple(part for part in parts if part is not None),
        num_layers=count,
        notes=tuple(notes),
    )


def without_block(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json without what it says of quantization, at any depth."""
    return {
        key: without_block(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _KEYS
    }


def _plain_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that the model states; bfloat16 where that is none for weights."""
    stated = stated_dtype(config)
    return stated if stated in DTYPES and DTYPES[stated].floating else _USUAL


def _scheme(layer: StoredLayer, config: QuantizationConfig, scope: str) -> Scheme | None:
    if not covers(scope, layer.facts.prefix):
        return None
    decision = config.scheme_for(layer.facts)
    config.refuse(decision, layer.facts)
    return decision.scheme if layer.layout.is_quantized else None


def _decoded(
    layer: StoredLayer,
    scheme: Scheme,
    config: QuantizationConfig,
    sources: Sources,
    dtype: str,
) -> dict[str, Part | None]:
    """Return what stands in the place of each tensor of a layer: its weight, or nothing."""
    facts, stored = layer.facts, sources.under(layer.facts.prefix)
    shape = config.weight_shape(scheme, facts)
    if len(shape) != 2:
        raise ConfigError(
            f"{facts.prefix} cannot be decoded: its weight has shape {list(shape)}.",
            why=["matrices are decoded one by one; this tensor holds several"],
            todo="Load the model with quantization='none', where the method supports it.",
        )
    n, k = shape
    slots = config.slots(scheme, n, k, facts)
    used = {name for slot in slots for name in slot.spellings if name in stored}
    codes = max(used, key=lambda name: stored[name].num_bytes)
    weight = f"{facts.prefix}.weight"
    part = Part(
        outputs={weight: StoredTensor(dtype=dtype, shape=(n, k))},
        file=stored[codes].file,
        num_bytes=sum(stored[name].num_bytes for name in used),
        make=partial(_dense, weight, config, scheme, facts, sources, dtype),
    )
    return {f"{facts.prefix}.{name}": part if name == codes else None for name in used}


def _dense(
    name: str,
    config: QuantizationConfig,
    scheme: Scheme,
    facts: LayerFacts,
    sources: Sources,
    dtype: str,
) -> dict[str, Tensor]:
    device = torch.device("cpu")
    return {name: read_dense(config, scheme, facts, sources, torch_dtype(dtype), device)}
