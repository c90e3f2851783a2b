"""What becomes of keys and values: the user's word, what the checkpoint asks for, what it stores.

| user | checkpoint | kept as |
|---|---|---|
| none | anything | the model's dtype |
| auto | asks for a cache | that, with the scales that it stores |
| auto | asks for NVFP4, and heads have no whole groups | the model's dtype |
| auto | only stores scales | fp8_e4m3 with them |
| auto | is decoded as asked (quantization="none"), or says nothing | the model's dtype |
| an element | asks for that one, or only stores scales and it is fp8_e4m3 | that, with its scales |
| an element | anything else | that; each token and head gets a scale of its own at run time |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantdock.checkpoint.model_facts import kv_shape
from quantdock.configs.kv_cache_field import FIELDS
from quantdock.configs.kv_scales import has_kv_scales
from quantdock.configs.stored import HEADERS
from quantdock.errors import ConfigError
from quantdock.plan.setting import Setting
from quantdock.schemes import (
    UNSTATED,
    KVCacheDecision,
    KVCacheSpec,
    dynamic_kv_spec,
    parse_kv_element,
)
from quantdock.schemes.kv_cache_spec import GROUP_SIZE

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig

AUTO, NONE = "auto", "none"
CHOICES = (AUTO, NONE, "fp8", "fp8_e5m2", "int8", "fp4")
# Tools that store scales without a word about the cache write them for this.
_CALIBRATED = KVCacheSpec(element="fp8_e4m3")


def with_kv_cache(
    setting: Setting, asked: str, model: Mapping[str, Any], tensors: Iterable[str]
) -> Setting:
    """Return ``setting`` with what becomes of keys and values.

    Args:
        asked: the user's word, one of CHOICES.
        model: the content of config.json. tensors: the names of all stored tensors, if read.
    Raises:
        ConfigError: the word is none of them, or heads are too narrow for it.
    """
    decision = decide_kv_cache(
        asked, setting.config, decodes=setting.decodes, has_scales=has_kv_scales(tensors)
    )
    shape = kv_shape(model)
    decision = _with_groups(decision, shape)
    return replace(setting, kv_cache=decision, kv_shape=shape)


def decide_kv_cache(
    asked: str, config: QuantizationConfig, *, decodes: bool = False, has_scales: bool = False
) -> KVCacheDecision:
    """Return what becomes of keys and values.

    Args:
        asked: the user's word, one of CHOICES.
        decodes: the user wants none of the checkpoint's quantization.
        has_scales: the checkpoint stores scales of keys or values.
    Raises:
        ConfigError: the word is none of them.
    """
    stated = _stated(config, has_scales)
    if asked == NONE:
        because = "the user asked for no quantized KV cache"
        if stated.spec is not None:
            because += f", although {stated.because}"
        return KVCacheDecision(because=because, source="kv_cache = 'none'")
    if asked == AUTO:
        if decodes and stated.spec is not None:
            because = f"no quantization was asked for, although {stated.because}"
            return KVCacheDecision(because=because, source="quantization = 'none'")
        return stated
    own = config.executed_kv_cache(dynamic_kv_spec(_element(asked)))
    source = f"kv_cache = {asked!r}"
    if stated.spec is not None and stated.spec.element == own.element:
        return replace(stated, source=f"{source}, {stated.source}")
    own_scale = "token and head has a scale of its own"
    if own.granularity == "group":
        own_scale = f"{GROUP_SIZE} numbers of a token and head have one"
    because = f"the user asked for it; each {own_scale}"
    return KVCacheDecision(spec=own, because=because, source=source)


def _stated(config: QuantizationConfig, has_scales: bool) -> KVCacheDecision:
    """Return what the checkpoint asks for, by word or by what it stores, as it is kept here."""
    if config.kv_cache.spec is not None or not has_scales:
        return replace(config.kv_cache, spec=config.kv_cache_spec())
    if config.kv_cache is not UNSTATED:
        return config.kv_cache
    return KVCacheDecision(
        spec=config.executed_kv_cache(_CALIBRATED),
        because="the checkpoint stores scales of keys and values",
        source=HEADERS,
        from_file=True,
    )


def _with_groups(decision: KVCacheDecision, shape: tuple[int, int] | None) -> KVCacheDecision:
    """Return ``decision``, unless heads of this width have no whole groups: then a file is not
    followed, and a user is refused. ``shape`` None: the width is not known.
    """
    spec = decision.spec
    if spec is None or spec.granularity != "group" or shape is None:
        return decision
    if shape[1] % (2 * GROUP_SIZE) == 0:
        return decision
    why = (
        f"a key and its value must each be whole groups of {GROUP_SIZE} numbers, which "
        f"share a scale; in a head of this model they have {shape[1]} together"
    )
    if decision.from_file and decision.source in FIELDS:
        return KVCacheDecision(because=f"{decision.because}; {why}", source=decision.source)
    raise ConfigError(
        f"Keys and values cannot be kept as {spec}.",
        why=[why],
        todo="Choose kv_cache='fp8'.",
        field="kv_cache",
    )


def _element(word: str) -> str:
    element = parse_kv_element(word)
    if element is None:
        raise ConfigError(
            f"kv_cache={word!r} is not known.",
            why=[f"known: {', '.join(CHOICES)}"],
            todo="Choose one of these.",
            field="kv_cache",
            value=word,
        )
    return element
