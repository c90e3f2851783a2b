"""compressed-tensors: groups of layers, each with a scheme and a way to store it of its own.

>>> args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
>>> block = {"format": "pack-quantized", "ignore": ["lm_head"],
...          "config_groups": {"all": {"targets": ["Linear"], "weights": args}}}
>>> from quantdock.schemes import LayerFacts
>>> config = CompressedTensorsConfig.from_config(block)
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int4[1x128]'
>>> config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).source
"ignore[0] = 'lm_head'"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from quantdock.configs.compressed_args import METHOD, ORIGINAL, not_yet
from quantdock.configs.compressed_groups import Group, read_group
from quantdock.configs.compressed_readers import make_reader
from quantdock.configs.fields import Fields
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.matcher import Entry, Match
from quantdock.configs.mixed_checkpoint import MixedCheckpointConfig, Reader
from quantdock.configs.pattern import CLASSES, Dialect
from quantdock.schemes import UNSTATED, Decision, KVCacheDecision, LayerFacts

# Extensions that change what the stored tensors mean; an empty object says that there is none.
_EXTENSIONS = {
    "sparsity_config": "stores sparse weights",
    "transform_config": "transforms weights (rotations)",
}
_NO_TARGET: Match[Reader | None] = Match(
    value=None, source="config_groups, where no target matches it,"
)


class CompressedTensorsConfig(MixedCheckpointConfig):
    """A checkpoint that says ``compressed-tensors``.

    Attributes:
        groups: in the order of the file.
    """

    name = METHOD
    dialect: ClassVar[Dialect] = CLASSES

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        ignored: Sequence[Entry[None]] = (),
        kv_cache: KVCacheDecision = UNSTATED,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.groups = tuple(groups)
        readers = [make_reader(group) for group in groups]
        targets = (
            Entry(text=text, source=f"{group.source}.targets[{index}] = {text!r}", value=reader)
            for group, reader in zip(groups, readers, strict=True)
            for index, text in enumerate(group.targets)
        )
        super().__init__(
            _NO_TARGET, by_class=targets, ignored=ignored, kv_cache=kv_cache, extra=extra
        )

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the group that targets a layer makes of it; ``ignore`` comes first."""
        if not self.readers:
            return Decision.unquantized("every group stores plain weights", "config_groups")
        return super().scheme_for(facts)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of the ignore list that have matched no layer so far."""
        return self._ignored.unmatched()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a compressed-tensors checkpoint.

        Raises:
            ConfigError: a known field has an impossible value.
            MethodNotYetError: a group is of a kind to come, or the file has an extension that
                changes what its tensors mean.
        """
        fields = Fields(config, cls.name)
        for name, what in _EXTENSIONS.items():
            extension = fields.get(name) or {}
            if not isinstance(extension, Mapping):
                fields.refuse(name, "an object, or null")
            if extension and extension.get("format") != "dense":
                not_yet(f"{name} {what}", ORIGINAL)
        groups = fields.get("config_groups")
        if not groups:
            not_yet("config_groups is missing")
        if not isinstance(groups, Mapping):
            fields.refuse("config_groups", "an object, group name to group")
        usual = fields.get("format")
        read = [read_group(name, group, usual) for name, group in groups.items()]
        ignored = fields.names("ignore")
        kv_cache = read_kv_cache(fields)
        return cls(read, ignored=ignored, kv_cache=kv_cache, extra=fields.rest())
