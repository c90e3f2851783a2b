"""ModelKVCache: makes caches of codes for one model, and gives them to whoever brings none.

``generate`` makes a cache through ``_prepare_cache_for_generation``, the method that models
override for caches of their own; a plain forward makes one when it is given none. Both get theirs
here. A cache that the caller passes is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from quantdock.integrations.transformers.cache_layers import (
    QuantizedLayer,
    QuantizedSlidingLayer,
    QuantizedStaticLayer,
    QuantizedStaticSlidingLayer,
)
from quantdock.kv_cache import KVCodec, KVScales, make_codec

Codecs = tuple[KVCodec, KVCodec]
# What a model's forward calls its cache, by release of transformers, the later name first.
_NAMES = ("cache", "past_key_values")
_PREPARE = "_prepare_cache_for_generation"


def _sliding(codecs: Codecs, layer: Any) -> QuantizedSlidingLayer:
    made = QuantizedSlidingLayer(codecs, layer.sliding_window)
    made.record_past = layer.record_past
    return made


def _static_sliding(codecs: Codecs, layer: Any) -> QuantizedStaticSlidingLayer:
    # Its length is the window's, or less where no more tokens are to come.
    made = QuantizedStaticSlidingLayer(codecs, layer.max_cache_len, layer.max_cache_len)
    made._is_croppable = getattr(layer, "_is_croppable", True)
    return made


_MAKERS: Mapping[type, Callable[[Codecs, Any], Any]] = MappingProxyType(
    {
        DynamicLayer: lambda codecs, layer: QuantizedLayer(codecs),
        DynamicSlidingWindowLayer: _sliding,
        StaticLayer: lambda codecs, layer: QuantizedStaticLayer(codecs, layer.max_cache_len),
        StaticSlidingWindowLayer: _static_sliding,
    }
)
QUANTIZABLE = frozenset(_MAKERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKVCache:
    """How a model keeps keys and values.

    Attributes:
        config: of the model.
        element: of the codes.
        scales: by layer of the cache; a layer that is not there stays in the model's dtype.
    """

    config: Any
    element: str
    scales: Mapping[int, KVScales]

    def new(self) -> DynamicCache:
        """Return an empty cache, for a conversation that goes on from call to call."""
        cache = DynamicCache(config=self.config)
        self.quantize(cache)
        return cache

    def quantize(self, cache: Any) -> None:
        """Make the layers of an empty ``cache`` keep codes, in place.

        Layers of other kinds, or with tokens in them, stay as they are.
        """
        for index, layer in enumerate(cache.layers):
            make, scales = _MAKERS.get(type(layer)), self.scales.get(index)
            is_moved = cache.offloading and isinstance(layer, StaticLayer)  # loses its address
            if make is None or scales is None or is_moved or int(layer.get_seq_length()):
                continue
            codecs = (make_codec(self.element, scales.k), make_codec(self.element, scales.v))
            cache.layers[index] = make(codecs, layer)


def use_kv_cache(model: Any, kv_cache: ModelKVCache) -> None:
    """Make ``model`` use caches of ``kv_cache`` wherever it would make its own."""
    is_first = not hasattr(model, "quantdock_kv_cache")
    model.quantdock_kv_cache = kv_cache
    if not is_first:
        return
    parameters = tuple(signature(model.forward).parameters)
    model.register_forward_pre_hook(partial(_give_cache, parameters), with_kwargs=True)
    if model.can_generate():
        assert hasattr(type(model), _PREPARE), "every release we support prepares caches so"
        setattr(model, _PREPARE, partial(_prepare_cache, model))


def _prepare_cache(model: Any, generation_config: Any, model_kwargs: Any, *rest: Any) -> Any:
    """Prepare a cache for ``generate`` as the model does, and make one that it made keep codes."""
    given = {name for name in _NAMES if model_kwargs.get(name) is not None}
    result = getattr(type(model), _PREPARE)(model, generation_config, model_kwargs, *rest)
    for name in _NAMES:
        if name not in given and model_kwargs.get(name) is not None:
            model.quantdock_kv_cache.quantize(model_kwargs[name])
    return result


def _give_cache(
    parameters: tuple[str, ...], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Add a cache to the arguments of a forward that would make its own."""
    if any(kwargs.get(name) is not None for name in _NAMES):
        return None
    by_place = dict(zip(parameters, args, strict=False))
    name = next((name for name in _NAMES if name in parameters), None)
    if name is None or name in by_place:
        return None
    use_cache = by_place.get("use_cache", kwargs.get("use_cache"))
    if use_cache is None:
        use_cache = getattr(model.config.get_text_config(decoder=True), "use_cache", False)
    return (args, kwargs | {name: model.quantdock_kv_cache.new()}) if use_cache else None
