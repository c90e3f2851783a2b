"""Layers as the headers show them: which tensors belong together, and what kind of layer they are.

Names and shapes alone decide here; no model class is needed, so that a plan needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from quantdock.checkpoint.expert_names import ROLES, SUFFIXES, runtime_name, split_stacked
from quantdock.checkpoint.expert_scales import homes
from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.checkpoint.whole_numbers import read_whole_numbers
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.plan.stack import Stack, are_turned, find_stack, num_stacked
from quantdock.schemes import Kind, LayerFacts, StoredTensor

_HEADS = frozenset({"lm_head", "embed_out", "output_layer"})
_BARE_HEADS = frozenset({"output", "head", "model.output", "shared_head.head"})
_EMBEDDINGS = frozenset({"wte", "wpe"})  # besides every name with "embed" in it
_MODULE = ".experts"
_SHAPE = "weight_shape"
# Parts that are never a scale of the KV cache; most tensors are one of these.
_OFTEN = frozenset({"weight", "bias", "weight_scale", "weight_scale_inv"})
Parts = list[tuple[str, TensorEntry]]  # what follows a prefix, and where it is stored
# A weight of all experts, what joins it and its tensors, how many there are, whether it is turned.
Stacked = tuple[str, str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is stored under a layer's prefix; layers of one shape share one Layout.

    ``weight_shape`` is that of the tensor named weight: (n, k), or (experts, n, k). ``stack`` is
    None where the tensors are of one matrix.
    """

    stored: Mapping[str, StoredTensor]
    weight_shape: tuple[int, ...]
    num_bytes: int
    codes: tuple[str, ...]  # the parts that are scales, zero points or codes of its own
    stack: Stack | None = None

    @property
    def n(self) -> int | None:
        """Return the number of output features, where the weight shows it."""
        return self.weight_shape[-2] if len(self.weight_shape) > 1 else None

    @property
    def k(self) -> int | None:
        """Return the number of input features, where the weight shows it."""
        return self.weight_shape[-1] if len(self.weight_shape) > 1 else None

    @property
    def is_quantized(self) -> bool:
        """Return whether scales, zero points or codes are stored."""
        return bool(self.codes)

    @property
    def copies(self) -> int:
        """Return how many matrices the weight holds: more than one for fused experts."""
        return prod(self.weight_shape[:-2])


class StoredLayer(NamedTuple):
    """One layer of the checkpoint: what it is, and what is stored."""

    facts: LayerFacts
    layout: Layout

    @property
    def asked(self) -> LayerFacts:
        """Return what a config is asked about: where experts are stacked, one of them."""
        stack = self.layout.stack
        return self.facts if stack is None else replace(self.facts, stored=stack.one)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """All layers of a checkpoint, in file order, and the bytes of the rest.

    ``cache_scales`` are tensors of the KV cache, whatever module they are stored under; ``strays``
    those below experts that make up no layer.
    """

    layers: tuple[StoredLayer, ...] = ()
    cache_scales: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    bytes_other: int = 0  # of norms, convolutions and all that no method quantizes


def stored_model(tensors: Mapping[str, TensorEntry], num_experts: int | None = None) -> StoredModel:
    """Return the layers that ``tensors`` make up.

    Args:
        num_experts: as config.json says; None: as most tensors that hold all of them do.
    """
    parts: dict[str, Parts] = {}
    cache_scales, moved = [], homes(tensors)
    for name, entry in tensors.items():
        prefix, _, part = name.rpartition(".")
        prefix = moved.get(name, prefix)
        if part not in _OFTEN and is_kv_scale(name):
            cache_scales.append(name)
            continue
        if ".weight." in name:  # bitsandbytes: "up_proj.weight.absmax" belongs to up_proj
            prefix, _, part = name.partition(".weight.")
            part = f"weight.{part}"
        parts.setdefault(prefix, []).append((part, entry))
    stacks = _split_fused_experts(parts, num_experts)
    known: dict[object, Layout] = {}
    layers: list[StoredLayer] = []
    strays: list[str] = []
    bytes_other = sum(tensors[name].num_bytes for name in cache_scales)
    for prefix, entries in parts.items():
        layout = _layout(entries, known, stacks.get(prefix))
        kind = _kind(prefix, layout)
        if kind is None:
            bytes_other += layout.num_bytes
            strays += [e.name for part, e in entries if f"{_MODULE}." in e.name and part != "bias"]
            continue
        layers.append(StoredLayer(_facts(prefix, kind, layout), layout))
    return StoredModel(
        layers=tuple(layers),
        cache_scales=tuple(cache_scales),
        strays=tuple(strays),
        bytes_other=bytes_other,
    )


def _facts(prefix: str, kind: Kind, layout: Layout) -> LayerFacts:
    other = runtime_name(prefix)
    return LayerFacts(
        prefix=prefix,
        kind=kind,
        class_names=("Embedding",) if kind == "embedding" else ("Linear",),
        aliases=() if other == prefix else (other,),
        stored=layout.stored,
    )


def _split_fused_experts(parts: dict[str, Parts], num_experts: int | None) -> dict[str, Stacked]:
    """Replace modules whose parts are whole expert weights by one layer for each weight.

    Returns those weights, and those that are modules of their own, with the number of experts.
    """
    modules: dict[str, dict[str, str]] = {}  # module -> layer -> what joins it and its tensors
    for prefix in [prefix for prefix in parts if prefix.endswith(_MODULE)]:
        for part, entry in parts.pop(prefix):
            name, suffix = split_stacked(part)
            layer = f"{prefix}.{name}"
            parts.setdefault(layer, []).append((SUFFIXES[suffix], entry))
            modules.setdefault(prefix, {})[layer] = "_"
    for layer in parts:
        module, _, name = layer.rpartition(".")
        if name in ROLES and module.endswith(_MODULE):
            modules.setdefault(module, {}).setdefault(layer, ".")
    found: dict[str, Stacked] = {}
    for layers in modules.values():
        held = (entry.stored for layer in layers for _, entry in parts[layer])
        number = num_experts or num_stacked(held)
        known = {layer: weight for layer in layers if (weight := layer.rpartition(".")[2]) in ROLES}
        is_turned = are_turned(
            {weight: {p: e.stored for p, e in parts[layer]} for layer, weight in known.items()}
        )
        for layer, weight in known.items():
            found[layer] = (weight, layers[layer], number, is_turned)
    return found


def _layout(entries: Parts, known: dict[object, Layout], stacked: Stacked | None) -> Layout:
    by_part = dict(entries)
    said = () if _has_groups(by_part) else _stated_shape(by_part)
    key = (said, stacked, *[(part, entry.dtype, entry.shape) for part, entry in entries])
    if (layout := known.get(key)) is None:
        said = _stated_shape(by_part)
        stored = {part: entry.stored for part, entry in entries}
        if said:
            stored[_SHAPE] = replace(stored[_SHAPE], values=said)
        weight = stored.get("weight")
        layout = known[key] = Layout(
            stored=stored,
            weight_shape=weight.shape if weight else (),
            num_bytes=sum(entry.num_bytes for _, entry in entries),
            codes=tuple(p for p, t in stored.items() if is_quantization_tensor(p, t.dtype)),
            stack=None if stacked is None else find_stack(*stacked, stored),
        )
    return layout


def _has_groups(entries: Mapping[str, TensorEntry]) -> bool:
    """Return whether scales by groups show K, so that layers alike in headers have one shape."""
    packed, scale = entries.get("weight_packed"), entries.get("weight_scale")
    if packed is None or scale is None or not packed.shape:
        return False
    return prod(scale.shape) > packed.shape[0]


def _stated_shape(entries: Mapping[str, TensorEntry]) -> tuple[int, ...]:
    """Return (N, K) as the file states it, where packed codes show K to the next word only."""
    shape, packed = entries.get(_SHAPE), entries.get("weight_packed")
    if shape is None or packed is None or not packed.shape:
        return ()
    return read_whole_numbers(shape)


def _kind(prefix: str, layout: Layout) -> Kind | None:
    """Return the kind of a layer; None for what no method ever quantizes."""
    kind, dims = kind_of(prefix), len(layout.weight_shape)
    is_one = dims == 2 or (kind == "experts" and dims == 3)
    return kind if is_one or layout.is_quantized else None


def kind_of(prefix: str) -> Kind:
    """Return the kind of a layer that may be quantized, by its name."""
    last = prefix.rpartition(".")[2]
    if f"{_MODULE}." in prefix:
        return "experts"
    if last in _HEADS or prefix in _BARE_HEADS or prefix.endswith(".shared_head.head"):
        return "head"
    if "embed" in last or last in _EMBEDDINGS:
        return "embedding"
    return "linear"
