"""The attention layers of a model that keep keys and values, and whether they can keep codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import DynamicCache

from quantdock.integrations.transformers.model_cache import QUANTIZABLE
from quantdock.integrations.transformers.names import NameMap
from quantdock.plan.attention import KEY_LAYERS


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One attention module; ``index`` is its layer in a cache, ``prefix`` its checkpoint name.

    ``why_not`` says why keys and values cannot be kept as codes; empty: they can. ``heads`` are
    those of keys that this rank holds; None: all.
    """

    name: str
    module: Any
    index: int
    prefix: str
    heads: range | None = None
    why_not: str = ""


def find_attention(model: Any, names: NameMap) -> list[AttentionLayer]:
    """Return the attention layers of ``model`` that use a cache, in its order."""
    found = []
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    members = {id(module) for module in decoder.modules()}
    for name, module in model.named_modules():
        index = getattr(module, "layer_idx", None)
        key = next((key for key in sorted(KEY_LAYERS) if hasattr(module, key)), None)
        if id(module) not in members or not isinstance(index, int) or key is None:
            continue
        found.append((name, module, index, names.layers.get(f"{name}.{key}", f"{name}.{key}")))
    if not found:
        return []
    reasons = _reasons(model)
    return [
        AttentionLayer(
            name=name,
            module=module,
            index=index,
            prefix=stored.rpartition(".")[0],
            heads=getattr(module, "quantdock_kv_heads", None),
            why_not=reasons[index] if index < len(reasons) else "it has no layer in the cache",
        )
        for name, module, index, stored in found
    ]


def _reasons(model: Any) -> list[str]:
    """Return for each layer of the model's cache why it cannot hold codes; empty: it can."""
    layers = DynamicCache(config=model.config).layers
    if model.config.is_encoder_decoder:
        return ["an encoder-decoder model keeps two caches"] * len(layers)
    return [
        ""
        if type(layer) in QUANTIZABLE
        else f"its cache is a {type(layer).__name__}, which keeps more than keys and values"
        for layer in layers
    ]
