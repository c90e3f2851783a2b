"""quark: AMD Quark's checkpoints: integers of 4 and 8 bits, fp8, MXFP4, MXFP6, by layer.

>>> from quantdock.schemes import LayerFacts
>>> tensor = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True}
>>> block = {"global_quant_config": {"weight": tensor, "input_tensors": tensor},
...          "layer_quant_config": {"*.o_proj": {"weight": tensor}}, "exclude": ["lm_head"]}
>>> config = QuarkConfig.from_config(block)
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int8[*x*] x int8[*x*]'
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.o_proj")).scheme)
'int8[*x*]'
>>> config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).source
"exclude[0] = 'lm_head'"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from quantdock.configs.fields import Fields
from quantdock.configs.kv_cache_field import kv_decision
from quantdock.configs.matcher import Entry, Match
from quantdock.configs.mixed_checkpoint import MixedCheckpointConfig, Reader, ReaderCache
from quantdock.configs.quark_spec import METHOD, not_yet, read_layer
from quantdock.configs.quark_tensors import PLACES, read_quark_layers
from quantdock.schemes import UNSTATED, KVCacheDecision, parse_kv_element

_GLOBAL = "global_quant_config"
_BY_NAME = "layer_quant_config"
_BY_CLASS = "layer_type_quant_config"
_CACHE = "kv_cache_quant_config"


class QuarkConfig(MixedCheckpointConfig):
    """A checkpoint that says ``quark``."""

    name = METHOD

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a Quark checkpoint.

        Raises:
            ConfigError: a known field has an impossible value.
            MethodNotYetError: an encoding is known and cannot be run yet.
        """
        fields = Fields(config, cls.name)
        if fields.get("softmax_quant_spec") is not None:
            not_yet("softmax_quant_spec", "is set: attention itself is quantized")
        export = Fields(_object(fields, "export"), f"{cls.name}: export")
        pack_method = export.choice("pack_method", {word: word for word in PLACES}, "reorder")
        export.choice("weight_format", {"real_quantized": None}, None)
        by_name, in_cache = _object(fields, _BY_NAME), _object(fields, _CACHE)
        group = export.names("kv_cache_group")
        cached = [*(entry.text for entry in group), *in_cache]

        def make(block: Any, source: str) -> Reader | None:
            said = read_layer(block, source, outputs=source in outputs)
            return None if said is None else read_quark_layers(said, pack_method)

        outputs = {f"{_BY_NAME}[{name!r}]" for name in cached}
        cache = ReaderCache(make)
        usual = cache.reader(fields.get(_GLOBAL) or {}, _GLOBAL)
        read = cls(
            Match(value=usual, source=_GLOBAL),
            by_name=_entries(by_name, _BY_NAME, cache.reader),
            by_class=_entries(_object(fields, _BY_CLASS), _BY_CLASS, cache.reader),
            ignored=fields.names("exclude"),
            kv_cache=_read_kv_cache(cached, {**by_name, **in_cache}),
            extra=fields.rest(),
        )
        if not read.readers:
            not_yet(_GLOBAL, "quantizes no weights, and neither does any other entry")
        return read


def _object(fields: Fields, name: str) -> Mapping[str, Any]:
    value = fields.get(name) or {}
    if not isinstance(value, Mapping):
        fields.refuse(name, "an object, or null")
    return value


def _entries(
    blocks: Mapping[str, Any], name: str, make: Callable[[Any, str], Reader | None]
) -> list[Entry[Reader | None]]:
    """Return one entry for each pattern in ``blocks``, with what reads the layers it matches."""
    return [
        Entry(
            text=pattern,
            source=f"{name}[{pattern!r}]",
            value=make(block, f"{name}[{pattern!r}]"),
        )
        for pattern, block in blocks.items()
    ]


def _read_kv_cache(names: list[str], blocks: Mapping[str, Any]) -> KVCacheDecision:
    """Return how keys and values are kept: as the outputs of the layers ``names`` that make them.

    Raises:
        ConfigError: what is said of a layer is no object.
        MethodNotYetError: keys and values are kept differently.
    """
    said = {name: blocks.get(name) or {} for name in names}
    specs = {
        name: Fields(block, f"{METHOD}: {_CACHE}[{name!r}]").get("output_tensors")
        for name, block in said.items()
    }
    told = {
        (str(spec.get("dtype")), str(spec.get("qscheme")), bool(spec.get("is_dynamic")))
        for spec in specs.values()
        if isinstance(spec, Mapping)
    }
    if not told:
        return UNSTATED
    if len(told) > 1:
        not_yet(_CACHE, f"keeps keys and values differently: {sorted(told)}")
    ((dtype, scheme, dynamic),) = told
    is_plain = scheme == "per_tensor" and not dynamic
    word = dtype if is_plain else f"{dtype} {scheme}{' dynamic' if dynamic else ''}"
    return kv_decision(word, parse_kv_element(dtype) if is_plain else None, "tensor", _CACHE)
