"""Making a loaded model keep keys and values as its checkpoint, or its user, asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quantdock.configs.kv_scales import assign_kv_scales, has_kv_scales
from quantdock.errors import LoadError, MismatchError, NothingQuantizedError, few
from quantdock.integrations.transformers.attention import AttentionLayer, find_attention
from quantdock.integrations.transformers.model_cache import ModelKVCache, use_kv_cache
from quantdock.integrations.transformers.names import NameMap
from quantdock.kv_cache import KVScales
from quantdock.loading.kv_scales import KVScaleReader, ReadScales
from quantdock.loading.sources import Sources
from quantdock.plan import LayerPlan
from quantdock.plan.attention import missing_scales, plan_attention
from quantdock.plan.setting import Setting
from quantdock.schemes import KVCacheDecision, KVCacheSpec

_log = logging.getLogger(__name__)


def prepare_kv_cache(
    model: Any, names: NameMap, sources: Sources, setting: Setting
) -> Callable[[], tuple[LayerPlan, ...]]:
    """Read all that is needed; return what makes ``model`` keep keys and values as decided.

    Called, it gives each attention module its scales as ``kv_scales`` and the model
    ``quantdock_kv_cache``, and returns the plan of each attention layer.

    Raises:
        LoadError: the file stores scales that no attention layer takes, or ones that do not fit.
        NothingQuantizedError: it was decided, and no layer of this model can.
    """
    layers = find_attention(model, names)
    spec = setting.kv_cache.spec
    if spec is None:
        plans = tuple(_plan(layer, setting.kv_cache, setting) for layer in layers)
        return lambda: plans
    fitting = [layer for layer in layers if not layer.why_not]
    if not fitting:
        reasons = dict.fromkeys(layer.why_not for layer in layers)
        raise NothingQuantizedError(
            f"Keys and values were to be kept as {spec}, and no layer of this model can.",
            why=[setting.kv_cache.because, *(reasons or ["none of its layers keeps any"])],
            todo="Load with kv_cache='none'.",
        )
    read = {
        layer.prefix: _of_own_heads(layer, found)
        for layer, found in _read_scales(fitting, sources, setting, spec)
    }
    _refuse_left_over(model, layers, names, sources, setting.kv_cache)
    scales = {layer.index: read[layer.prefix].scales for layer in fitting}
    cache = ModelKVCache(config=model.config, element=spec.element, scales=scales)

    def give() -> tuple[LayerPlan, ...]:
        for layer in fitting:
            layer.module.kv_scales = read[layer.prefix].scales
        use_kv_cache(model, cache)
        return tuple(_final(layer, read.get(layer.prefix), setting, spec) for layer in layers)

    return give


def _of_own_heads(layer: AttentionLayer, read: ReadScales) -> ReadScales:
    """Return the scales of the heads that this rank holds."""
    if layer.heads is None:
        return read
    return replace(read, scales=read.scales.of_heads(layer.heads))


def require_same_kv_cache(model: Any, setting: Setting) -> None:
    """Refuse to reload a checkpoint whose keys and values are kept otherwise than the model's.

    Raises:
        MismatchError: names both.
    """
    built = getattr(model, "quantdock_kv_cache", None)
    before = built.element if built else "the model's dtype"
    spec = setting.kv_cache.spec
    now = spec.element if spec else "the model's dtype"
    if before != now:
        raise MismatchError(
            f"The model keeps keys and values in {before}, and this checkpoint in {now}.",
            why=[f"{setting.kv_cache.because} ({setting.kv_cache.source})"],
            todo="Load the checkpoint with quantdock.load instead.",
        )


def _read_scales(
    layers: Sequence[AttentionLayer], sources: Sources, setting: Setting, spec: KVCacheSpec
) -> list[tuple[AttentionLayer, ReadScales]]:
    """Return the scales of each layer, of all its heads."""
    if not setting.kv_cache.from_file or spec.dynamic:
        return [(layer, ReadScales(scales=KVScales())) for layer in layers]
    heads = setting.kv_shape[0] if setting.kv_shape else None
    reader = KVScaleReader(sources=sources, config=setting.config, spec=spec, heads=heads)
    stored = assign_kv_scales(sources.tensors, [layer.prefix for layer in layers])
    return [(layer, reader.read(stored[layer.prefix])) for layer in layers]


def _final(
    layer: AttentionLayer, read: ReadScales | None, setting: Setting, spec: KVCacheSpec
) -> LayerPlan:
    """Return the plan of one layer by what was found for it; say loudly what was not."""
    if read is None:
        decision = KVCacheDecision(because=layer.why_not, source="the model")
        return _plan(layer, decision, setting)
    warnings = read.warnings
    if setting.kv_cache.from_file:
        lost = missing_scales(setting.kv_cache, read.has_keys, read.has_values)
        warnings = (*warnings, *lost)
    for warning in warnings:
        _log.warning("%s: %s", layer.prefix, warning)
    if spec.granularity != "group":
        spec = replace(spec, granularity=_granularity(read.scales))
    return _plan(layer, replace(setting.kv_cache, spec=spec), setting, warnings)


def _granularity(scales: KVScales) -> str:
    """Return the finest of what the scales of keys and of values cover."""
    found = {scale.granularity if scale else "token" for scale in (scales.k, scales.v)}
    return next(word for word in ("token", "head", "tensor") if word in found)


def _plan(
    layer: AttentionLayer,
    decision: KVCacheDecision,
    setting: Setting,
    warnings: Sequence[str] = (),
) -> LayerPlan:
    shape = setting.kv_shape
    if shape is not None and layer.heads is not None:
        shape = (len(layer.heads), shape[1])
    return plan_attention(layer.prefix, decision, setting.dtype, shape, warnings)


def _refuse_left_over(
    model: Any,
    layers: Sequence[AttentionLayer],
    names: NameMap,
    sources: Sources,
    decision: KVCacheDecision,
) -> None:
    """Raise if the file stores scales under modules that were built, and nothing took them."""
    if not decision.from_file:
        return
    built = {names.layers[name] for name, _ in model.named_modules() if name in names.layers}
    unquantized = tuple(f"{layer.prefix}." for layer in layers if layer.why_not)
    left = [
        name
        for name in sources.left_over()
        if has_kv_scales([name])
        and name.rpartition(".")[0] in built
        and not name.startswith(unquantized or " ")
    ]
    if left:
        raise LoadError(
            "Scales of keys or values belong to no attention layer.",
            why=[few(left), f"attention layers: {few([layer.prefix for layer in layers], 3)}"],
            todo="Load with kv_cache='none' to keep keys and values in the model's dtype.",
            names=tuple(left),
        )
