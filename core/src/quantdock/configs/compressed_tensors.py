"""compressed-tensors: groups of layers, each with a scheme of its own. Here: fp8 and mxfp8.

>>> args = {"num_bits": 8, "type": "float", "strategy": "tensor"}
>>> block = {"format": "float-quantized", "ignore": ["lm_head"],
...          "config_groups": {"all": {"targets": ["Linear"], "weights": args}}}
>>> config = CompressedTensorsConfig.from_config(block)
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'fp8_e4m3[*x*]'
>>> config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).source
"ignore[0] = 'lm_head'"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from quantdock.config import QuantizationConfig
from quantdock.configs.compressed_groups import METHOD, Group, not_yet, read_group
from quantdock.configs.fields import Fields
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.fp8_tensors import FLOAT_SCALES, decode_fp8, fp8_slots
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.matcher import Entry, Match, Matcher
from quantdock.configs.pattern import CLASSES
from quantdock.formats import EXPONENT_BYTES, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import UNSTATED, Decision, KVCacheDecision, LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

# Extensions that change what the stored tensors mean; an empty object says that there is none.
_EXTENSIONS = {
    "sparsity_config": "stores sparse weights",
    "transform_config": "transforms weights (rotations)",
}
_LINEAR = "Linear"
_NO_TARGET = Match(value=None, source="config_groups, where no target matches it,")


class GroupReader(Fp8CheckpointConfig):
    """Reads the layers of one group: what the headers show decides, as in every fp8 file."""

    name = METHOD

    def __init__(self, group: Group) -> None:
        specs = [group.weight]
        if group.weight.granularity in ("tensor", "channel"):
            specs += [replace(group.weight, rows=rows) for rows in (None, 1)]
        is_static = group.activation is not None and not group.activation.dynamic
        super().__init__(
            tuple(dict.fromkeys(specs)),
            activation_scheme="static" if is_static else "dynamic",
            stated=group.source,
        )
        self.group = group

    def activation_for(self, weight: QuantSpec) -> QuantSpec | None:
        """Return how the group encodes activations, whatever its weights turn out to be."""
        return self.group.activation


class CompressedTensorsConfig(QuantizationConfig):
    """A checkpoint that says ``compressed-tensors``, all of its groups in fp8 or mxfp8.

    Attributes:
        groups: in the order of the file.
        extra: fields of the JSON that are not used, kept as they are.
    """

    name = METHOD

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        ignored: Sequence[Entry[None]] = (),
        kv_cache: KVCacheDecision = UNSTATED,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.groups = tuple(groups)
        self.kv_cache = kv_cache
        self.extra = dict(extra or {})
        self._ignored = Matcher(ignored, CLASSES)
        self._readers = [GroupReader(group) for group in groups]
        self._targets = Matcher(
            (
                Entry(text=text, source=f"{group.source}.targets[{index}] = {text!r}", value=number)
                for number, group in enumerate(groups)
                for index, text in enumerate(group.targets)
            ),
            CLASSES,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a compressed-tensors checkpoint.

        Raises:
            ConfigError: a known field has an impossible value.
            MethodNotYetError: a group is neither fp8 nor mxfp8, or the file has an extension that
                changes what its tensors mean.
        """
        fields = Fields(config, cls.name)
        for name, what in _EXTENSIONS.items():
            extension = fields.get(name) or {}
            if not isinstance(extension, Mapping):
                fields.refuse(name, "an object, or null")
            if extension and extension.get("format") != "dense":
                not_yet(name, what)
        groups = fields.get("config_groups")
        if not groups:
            not_yet("config_groups", "is missing")
        if not isinstance(groups, Mapping):
            fields.refuse("config_groups", "an object, group name to group")
        usual = fields.get("format")
        read = [read_group(name, group, usual) for name, group in groups.items()]
        ignored = fields.names("ignore")
        kv_cache = read_kv_cache(fields)
        return cls(read, ignored=ignored, kv_cache=kv_cache, extra=fields.rest())

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the group that targets a layer makes of it; ``ignore`` comes first."""
        if facts.kind == "experts":  # stored as linear layers, whatever the model builds of them
            facts = replace(facts, class_names=(*facts.class_names, _LINEAR))
        listed = self._ignored.find(facts, self.packed_modules_mapping)
        target = self._targets.find(facts, self.packed_modules_mapping)
        if target is not None and target.conflict:
            return Decision.refused(target.conflict, target.source)
        reader = self._readers[target.value if target else 0]
        decision = reader.decide(facts, listed or (None if target else _NO_TARGET))
        if decision.scheme is None:
            return decision
        executed = self.executed(decision.scheme)
        return decision if executed is decision.scheme else replace(decision, scheme=executed)

    def executed(self, scheme: Scheme) -> Scheme:
        """Return what runs for ``scheme``: itself, unless a platform's config overrides this."""
        return scheme

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight, its scale, and the scale of its input where there is one."""
        dtypes = EXPONENT_BYTES if scheme.weight.scale == "e8m0" else FLOAT_SCALES
        return fp8_slots(scheme, n, k, facts, dtypes)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes and scales as the file has them."""
        return decode_fp8(scheme, stored)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of the ignore list that have matched no layer so far."""
        return self._ignored.unmatched()

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided against the JSON."""
        notes = (note for reader in self._readers for note in reader.notes())
        return (*super().notes(), *dict.fromkeys(notes))
