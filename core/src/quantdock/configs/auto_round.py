"""auto-round: integers and floats in the tensors of other dialects, with overrides by layer.

>>> from quantdock.schemes import LayerFacts
>>> block = {"bits": 4, "group_size": 128, "sym": True, "packing_format": "auto_round:auto_gptq",
...          "block_name_to_quantize": "model.layers",
...          "extra_config": {".*down_proj": {"bits": 8}, "model.layers.0.mlp.gate": {"bits": 16}}}
>>> config = AutoRoundConfig.from_config(block)
>>> [str(config.scheme_for(LayerFacts(prefix=f"model.layers.0.mlp.{name}")).scheme)
...  for name in ("up_proj", "down_proj", "gate")]
['int4[1x128]', 'int8[1x128]', 'None']
>>> config.scheme_for(LayerFacts(prefix="visual.blocks.0.fc1")).source
'block_name_to_quantize, which does not hold it,'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from quantdock.configs.auto_round_floats import METHOD, not_yet
from quantdock.configs.auto_round_layers import read_scheme
from quantdock.configs.fields import Fields
from quantdock.configs.kv_cache_field import kv_decision
from quantdock.configs.matcher import Entry, Match, Matcher, entries
from quantdock.configs.mixed_checkpoint import MixedCheckpointConfig, Reader, ReaderCache
from quantdock.configs.pattern import Dialect
from quantdock.schemes import UNSTATED, KVCacheDecision, LayerFacts, parse_kv_element

_BLOCK = "quantization_config"
_OVERRIDES = "extra_config"
_BLOCKS = ("block_name_to_quantize", "to_quant_block_names")
_CACHE = "static_kv_dtype"
# How a layer is encoded; what an override does not say is as the block says.
_SCHEME = (
    *("bits", "group_size", "sym", "data_type", "packing_format", "backend"),
    *("act_bits", "act_group_size", "act_sym", "act_data_type", "act_dynamic"),
)
_EXPRESSION = re.compile(r"[\\^$*+?()\[\]{}|]")  # a name has none of these


class AutoRoundConfig(MixedCheckpointConfig):
    """A checkpoint that says ``auto-round``."""

    name = METHOD
    dialect = Dialect(anywhere=False, full_regex=True)

    def __init__(
        self,
        usual: Match[Reader | None],
        *,
        blocks: Sequence[Entry[None]] = (),
        **options: Any,
    ) -> None:
        super().__init__(usual, **options)
        self._blocks = Matcher(blocks, self.dialect)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an AutoRound checkpoint.

        Raises:
            ConfigError: a known field has an impossible value.
            MethodNotYetError: a packing or data type is known and cannot be run yet.
        """
        fields = Fields(config, cls.name)
        if fields.get("rotation_config") or fields.get("rotation_configs"):
            not_yet("rotation_config", "rotates weights and activations")
        said = {name: fields.get(name) for name in _SCHEME if fields.get(name) is not None}
        cache = ReaderCache(read_scheme)
        read = cls(
            Match(value=cache.reader(said, _BLOCK), source=_BLOCK),
            by_name=_read_overrides(fields, said, cache),
            blocks=_read_blocks(fields),
            ignored=fields.names("modules_to_not_convert"),
            kv_cache=_read_kv_cache(fields),
            extra=fields.rest(),
        )
        if not read.readers:
            not_yet(_BLOCK, "quantizes no weights, and neither does extra_config")
        return read

    def told(self, facts: LayerFacts) -> Match[Reader | None] | None:
        """Return the override for a layer, or that it lies outside the blocks to quantize."""
        found = super().told(facts)
        if found is not None or not self._blocks.entries or facts.kind not in ("linear", "experts"):
            return found
        if self._blocks.find(facts, self.packed_modules_mapping) is not None:
            return None
        field = self._blocks.entries[0].source.partition("[")[0]
        return Match(value=None, source=f"{field}, which does not hold it,")

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of lists and overrides that have matched no layer so far."""
        return (*super().unmatched(), *self._blocks.unmatched())


def _read_overrides(
    fields: Fields, said: Mapping[str, Any], cache: ReaderCache
) -> Iterator[Entry[Reader | None]]:
    """Yield the entries of extra_config, names before regular expressions; empty ones say nothing.

    Raises:
        ConfigError: it is no object of objects, or a field in it has an impossible value.
    """
    table = fields.get(_OVERRIDES) or {}
    if not isinstance(table, Mapping) or not all(
        isinstance(override, Mapping | None) for override in table.values()
    ):
        fields.refuse(_OVERRIDES, "an object, layer name or expression to an object of fields")
    for name, override in table.items():
        if not override:
            continue
        source = f"{_OVERRIDES}[{name!r}]"
        more = {key: value for key, value in override.items() if value is not None}
        text = f"re:{name}" if _EXPRESSION.search(name) else name
        yield Entry(text=text, source=source, value=cache.reader({**said, **more}, source))


def _read_blocks(fields: Fields) -> tuple[Entry[None], ...]:
    """Return the names of the blocks that hold all quantized layers; none: they may be anywhere.

    Raises:
        ConfigError: the field holds something else than names.
    """
    field = next((name for name in _BLOCKS if fields.get(name) is not None), _BLOCKS[0])
    value = fields.get(field)
    names = value.split(",") if isinstance(value, str) else list(_flat(value))
    if not all(isinstance(name, str) for name in names):
        fields.refuse(field, "names of blocks, separated by commas or in lists, or null")
    return entries(field, (name.strip() for name in names))


def _flat(value: Any) -> Iterator[Any]:
    """Yield the items of lists in lists; of anything else, itself."""
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def _read_kv_cache(fields: Fields) -> KVCacheDecision:
    word = fields.get(_CACHE)
    if word is None:
        return UNSTATED
    word = str(word).removeprefix("torch.")
    return kv_decision(word, parse_kv_element(word), "tensor", _CACHE)
