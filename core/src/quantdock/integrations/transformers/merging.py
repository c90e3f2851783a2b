"""Giving layers of one input one store: queries, keys and values, and gate and up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quantdock.config import QuantizationConfig
from quantdock.configs.matcher import FUSION
from quantdock.errors import QuantDockError
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.integrations.transformers.recipe import Options
from quantdock.layers import LinearBase, MergedStore, MergedView
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.plan.grouping import collapse_all
from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Siblings:
    """Layers of one module that a fused layer ``name`` would gather, in its order."""

    name: str  # of the store, in the model
    layers: tuple[FoundLayer, ...]
    modules: tuple[Any, ...]

    @property
    def facts(self) -> LayerFacts:
        """Return what is known of the fused layer, under the checkpoint's names."""
        last = self.name.rpartition(".")[2]
        each = [layer.facts for layer in self.layers]
        stem, dot, _ = each[0].prefix.rpartition(".")
        return LayerFacts(
            prefix=f"{stem}{dot}{last}",
            class_names=each[0].class_names,
            shards=tuple(facts.prefix for facts in each),
            stored={
                f"{facts.prefix.rpartition('.')[2]}.{part}": tensor
                for facts in each
                for part, tensor in (facts.stored or {}).items()
            },
        )


@dataclass(slots=True)
class Merges:
    """What was merged, and what was not, for the plan."""

    stores: dict[str, MergedStore] = field(default_factory=dict)  # by name in the model
    declined: dict[str, list[str]] = field(default_factory=dict)  # reason -> checkpoint prefixes

    def notes(self) -> Iterator[str]:
        """Yield what the plan says besides what it says of each layer."""
        if self.stores:
            layers = sum(len(store.rows) for store in self.stores.values())
            yield f"merged: {layers:,} layers share {len(self.stores):,} stores"
        for reason, prefixes in self.declined.items():
            yield f"not merged: {', '.join(collapse_all(prefixes))}: {reason}"


def merge_layers(
    model: Any, found: Sequence[FoundLayer], config: QuantizationConfig, options: Options
) -> Merges:
    """Give sibling layers of ``model`` that may have one store their store, if that was asked for.

    Runs after the layers were built and before they are filled.
    """
    merges = Merges()
    for siblings in _find(model, found) if options.merge else ():
        reason, store = _store(model, siblings, config, options.tp.size)
        if store is None:
            prefixes = [layer.facts.prefix for layer in siblings.layers]
            merges.declined.setdefault(reason, []).extend(prefixes)
            continue
        merges.stores[siblings.name] = store
        parent, _, last = siblings.name.rpartition(".")
        model.get_submodule(parent).add_module(last, store)
        for index, layer in enumerate(siblings.layers):
            model.set_submodule(layer.name, MergedView(store, index, layer.facts).eval())
    return merges


def _find(model: Any, found: Sequence[FoundLayer]) -> Iterator[_Siblings]:
    """Yield layers that are all there under one parent, where one at least is quantized."""
    layers: Mapping[str, FoundLayer] = {layer.name: layer for layer in found}
    parents = dict.fromkeys(layer.name.rpartition(".")[0] for layer in found)
    for parent in parents:
        for fused, shards in FUSION.items():
            names = [f"{parent}.{shard}" for shard in shards]
            if not all(name in layers for name in names):
                continue
            modules = tuple(model.get_submodule(name) for name in names)
            if any(_is_quantized(module) for module in modules):
                members = tuple(layers[name] for name in names)
                yield _Siblings(name=f"{parent}.{fused}", layers=members, modules=modules)


def _is_quantized(module: Any) -> bool:
    return isinstance(module, LinearBase) and isinstance(module.quant_method, QuantizedLinearMethod)


def _store(
    model: Any, siblings: _Siblings, config: QuantizationConfig, ranks: int
) -> tuple[str, MergedStore | None]:
    """Return the store, still empty, or why there can be none."""
    if reason := _why_not(model, siblings, ranks):
        return reason, None
    first, facts = siblings.modules[0], siblings.facts
    decision = config.scheme_for(facts)
    if decision.scheme != first.quant_method.scheme:
        return f"together they would be {decision.scheme or decision.because}", None
    try:
        with torch.device("meta"):
            store = MergedStore(
                first.in_features,
                [module.out_features for module in siblings.modules],
                first.bias is not None,
                params_dtype=first.params_dtype,
                quant_config=config,
                facts=facts,
            ).eval()
    except QuantDockError as error:
        return f"together they cannot be built: {error.what}", None
    kernel = first.quant_method.selection.kernel.name
    together = store.quant_method.selection.kernel.name
    if together != kernel:
        return f"together they would run {together}, and alone {kernel}", None
    return "", store


def _why_not(model: Any, siblings: _Siblings, ranks: int) -> str:
    """Return why the layers must not have one store; empty where they may."""
    modules, names = siblings.modules, [layer.facts.prefix for layer in siblings.layers]
    last = [name.rpartition(".")[2] for name in names]
    if ranks > 1:
        return "ranks divide the model"
    if model.config.is_encoder_decoder:
        return "keys and values may be of another input than queries"
    if plain := [name for name, m in zip(last, modules, strict=True) if not _is_quantized(m)]:
        return f"{', '.join(plain)} not quantized, the others are"
    methods = [module.quant_method for module in modules]
    if len({str(method.scheme) for method in methods}) > 1:
        told = (f"{n} is {m.scheme}" for n, m in zip(last, methods, strict=True))
        return f"they have different schemes: {', '.join(told)}"
    scheme = methods[0].scheme
    if scheme.weight.act_order or scheme.input_multiplier:
        return "each may order or multiply its input in its own way"
    if len({method.selection.kernel.name for method in methods}) > 1:
        return "they run different kernels"
    if len({module.in_features for module in modules}) > 1:
        return "they have inputs of different sizes"
    if len({module.bias is None for module in modules}) > 1:
        return "some have a bias and some have none"
    return ""
