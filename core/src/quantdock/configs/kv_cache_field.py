"""What a quantization block says of the KV cache, in each of its spellings.

>>> from quantdock.configs.fields import Fields
>>> str(read_kv_cache(Fields({"kv_cache_scheme": "FP8"}, "fp8")).spec)
'fp8_e4m3[tensor]'
>>> str(read_kv_cache(Fields({"kv_cache_quant_algo": "NVFP4"}, "modelopt")).spec)
'fp4_e2m1[group]:second[tensor]'
>>> args = {"type": "float", "num_bits": 8, "strategy": "attn_head"}
>>> str(read_kv_cache(Fields({"kv_cache_scheme": args}, "fp8")).spec)
'fp8_e4m3[head]'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdock.configs.fields import Fields
from quantdock.schemes import UNSTATED, KVCacheDecision, KVCacheSpec, parse_kv_element
from quantdock.schemes.kv_cache_spec import NVFP4

FIELDS = ("kv_cache_quant_algo", "kv_cache_scheme")
_NOTHING = ("none", "auto")
# Words for a cache with two levels of scales.
_TWO_LEVELS = {"nvfp4": NVFP4}
# An object's words for what one scale covers.
_STRATEGIES = {"tensor": "tensor", "attn_head": "head", "head": "head", "token": "token"}


def read_kv_cache(fields: Fields) -> KVCacheDecision:
    """Return the cache that the block asks for; a kind that is not supported keeps its reason.

    Raises:
        ConfigError: a field holds neither a word nor an object.
    """
    for name in FIELDS:
        value = fields.get(name)
        if isinstance(value, Mapping) and {"type", "num_bits"} <= value.keys():
            return _read_object(value, name)
        if isinstance(value, str) and value.strip().lower() not in _NOTHING:
            return kv_decision(value.lower(), parse_kv_element(value), "tensor", name)
        if value is not None and not isinstance(value, str):
            fields.refuse(name, "a word such as 'FP8', an object with type and num_bits, or null")
    return UNSTATED


def _read_object(args: Mapping[str, Any], name: str) -> KVCacheDecision:
    word = f"{args['type']}{args['num_bits']}"
    element = parse_kv_element({"float8": "fp8"}.get(word, word))
    strategy = str(args.get("strategy") or "tensor").lower()
    granularity = _STRATEGIES.get(strategy, "")
    if granularity and args.get("dynamic"):
        granularity = "token"
    if args.get("symmetric") is False:
        word, element = f"{word} with zero points", None
    if not granularity:
        word, element = f"{word} by {strategy}", None
    return kv_decision(word, element, granularity, name)


def kv_decision(word: str, element: str | None, granularity: str, name: str) -> KVCacheDecision:
    """Return the cache that the field ``name`` asks for; no element: this release has none."""
    because = f"the checkpoint asks for keys and values in {word}"
    if (two_levels := _TWO_LEVELS.get(word)) is not None:
        return KVCacheDecision(spec=two_levels, because=because, source=name, from_file=True)
    # Other words for fp4 do not say whose scales are meant.
    if element is None or element == "fp4_e2m1":
        return KVCacheDecision(because=f"{because}, which this release does not keep", source=name)
    spec = KVCacheSpec(element=element, granularity=granularity)
    return KVCacheDecision(spec=spec, because=because, source=name, from_file=True)
