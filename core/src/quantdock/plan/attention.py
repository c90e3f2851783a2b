"""Attention layers in a plan: how their keys and values are kept, and what a token takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quantdock.checkpoint.scope import covers
from quantdock.configs.kv_scales import assign_kv_scales
from quantdock.formats import DTYPES
from quantdock.plan.plan import LayerPlan
from quantdock.plan.stored_layers import StoredModel
from quantdock.schemes import KVCacheDecision

# What makes keys, alone or with queries and values; attention is the module around it.
KEY_LAYERS = frozenset(
    {"k_proj", "wk", "qkv_proj", "qkv", "Wqkv", "query_key_value", "c_attn", "kv_b_proj"}
)
_KERNEL = "kv_cache"
_KERNEL_NOTE = "plain torch; decoded as attention reads it"


def attention_prefixes(layers: Iterable[str]) -> list[str]:
    """Return the attention layers of the language model, by the names of all its ``layers``."""
    parents = (name.rpartition(".") for name in layers)
    found = dict.fromkeys(parent for parent, _, last in parents if last in KEY_LAYERS)
    return [name for name in found if ".layers." in f".{name}" and covers("text", name)]


def plan_attention(
    prefix: str,
    decision: KVCacheDecision,
    dtype: str,
    shape: tuple[int, int] | None,
    warnings: Sequence[str] = (),
) -> LayerPlan:
    """Return the plan of one attention layer.

    Args:
        dtype: of the model, in which unquantized keys and values are kept.
        shape: heads, and values of one head's key and value together; None if unknown.
    """
    spec = decision.spec
    size = None
    if shape is not None:
        heads, width = shape
        wide = heads * width * DTYPES[dtype].bits // 8
        size = wide if spec is None else spec.bytes_per_token(heads, width)
    return LayerPlan(
        prefix=prefix,
        kind="attention",
        decision="unquantized" if spec is None else "quantized",
        because=decision.because,
        source=decision.source,
        scheme=None if spec is None else str(spec),
        kernel=None if spec is None else _KERNEL,
        kernel_note="" if spec is None else _KERNEL_NOTE,
        bytes_per_token=size,
        warnings=tuple(warnings),
    )


def plan_attention_layers(
    model: StoredModel,
    decision: KVCacheDecision,
    dtype: str,
    shape: tuple[int, int] | None,
) -> tuple[LayerPlan, ...]:
    """Return the plans of all attention layers that the names in ``model`` show."""
    prefixes = attention_prefixes(layer.facts.prefix for layer in model.layers)
    stored = assign_kv_scales(model.cache_scales, prefixes)
    return tuple(
        plan_attention(
            prefix,
            decision,
            dtype,
            shape,
            missing_scales(decision, bool(names.of_keys), bool(names.of_values)),
        )
        for prefix, names in stored.items()
    )


def missing_scales(decision: KVCacheDecision, has_keys: bool, has_values: bool) -> tuple[str, ...]:
    """Return the warning that a layer lacks the scales which the checkpoint promises, if so."""
    spec = decision.spec
    if spec is None or spec.dynamic or (has_keys and has_values):
        return ()
    used = "1.0 is used" if spec.is_float else "each token and head gets one at run time"
    if not has_keys and not has_values:
        return (
            f"{decision.because} ({decision.source}), but stores no scales for them: {used}, "
            "which may cost accuracy",
        )
    which = "values" if has_keys else "keys"
    return (f"the checkpoint stores no scale of the {which} beside that of the others: {used}",)
