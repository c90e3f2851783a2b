"""One entry of config_groups: what a compressed-tensors file makes of the layers it targets.

>>> args = {"num_bits": 8, "type": "float", "strategy": "channel"}
>>> group = read_group("group_0", {"targets": ["Linear"], "weights": args}, "float-quantized")
>>> str(group.scheme), group.storage
('fp8_e4m3[1x*]', 'floats')
>>> group = read_group("W4A16", ["Linear"], None)
>>> str(group.scheme), group.storage
('int4[1x128]', 'words')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quantdock.configs.compressed_args import (
    METHOD,
    ORIGINAL,
    Args,
    not_yet,
    read_activation,
    read_weight,
)
from quantdock.configs.compressed_presets import PRESETS
from quantdock.configs.fields import Fields
from quantdock.errors import ConfigError
from quantdock.schemes import Scheme

# Format -> type of the weights -> how their codes are stored: plain (no codes), floats or integers
# of one byte, or packed into words.
FORMATS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "dense": {"float": "plain", "int": "plain"},
        "fakequant": {"float": "plain", "int": "plain"},
        "naive-quantized": {"float": "floats", "int": "integers"},
        "float-quantized": {"float": "floats"},
        "int-quantized": {"int": "integers"},
        "pack-quantized": {"int": "words"},
        "mxfp8-quantized": {"float": "floats"},
    }
)
_MICRO = "mxfp8-quantized"
_TO_COME = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized")
_SPARSE = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The layers of one group and how they are encoded; ``scheme`` None: not at all."""

    name: str
    targets: tuple[str, ...]
    scheme: Scheme | None
    storage: str  # a word of FORMATS

    @property
    def source(self) -> str:
        """Return where the group stands."""
        return f"config_groups.{self.name}"


def read_group(name: str, group: Any, usual_format: object) -> Group:
    """Return what config_groups says under ``name``.

    Args:
        group: an object; or a list of targets, where ``name`` is that of a preset.
        usual_format: the block's own ``format``, for groups that name none.
    Raises:
        ConfigError: a field has an impossible value.
        MethodNotYetError: the group is in a format that is known and cannot be run yet.
    """
    block = group if isinstance(group, Mapping) else _preset(name, group)
    fields = Fields(block, f"{METHOD}: {name}")
    own = fields.get("format")
    _require_known(name, usual_format if own is None else own)
    if fields.get("targets") is None:
        fields.refuse("targets", "a list of names and classes of layers")
    targets = tuple(entry.text for entry in fields.names("targets"))
    weights, inputs = _args(name, fields, "weights"), _args(name, fields, "input_activations")
    if fields.get("output_activations") is not None:
        not_yet(f"{name} quantizes the outputs of layers")
    if weights is None:
        if inputs is not None:
            not_yet(f"{name} quantizes activations and no weights")
        return Group(name=name, targets=targets, scheme=None, storage="plain")
    form = _format(fields, usual_format, weights, inputs)
    if weights.is_float and inputs is not None and not inputs.is_float:
        inputs.refuse("type", "'float'", f"{name}.weights are floats")
    micro = form == _MICRO
    scheme = Scheme(
        weight=read_weight(weights, micro=micro),
        activation=None if inputs is None else read_activation(inputs, micro=micro),
    )
    storage = FORMATS[form]["float" if weights.is_float else "int"]
    return Group(
        name=name, targets=targets, scheme=None if storage == "plain" else scheme, storage=storage
    )


def _require_known(name: str, form: object) -> None:
    """Raise for a format that is known and cannot be read yet."""
    if form in _TO_COME:
        not_yet(f"{name} is stored as {form}")
    if form in _SPARSE:
        not_yet(f"{name} is stored as {form}, which is sparse", ORIGINAL)


def _preset(name: str, targets: object) -> Mapping[str, Any]:
    """Return the group that the preset called ``name`` is for ``targets``."""
    if name.upper() not in PRESETS:
        raise ConfigError(
            f"{METHOD}: config_groups.{name} is {targets!r}, and {name} is no preset.",
            why=[f"a list of targets stands under one of {', '.join(PRESETS)}"],
            todo="Write the group out, with targets, weights and input_activations.",
            field=f"config_groups.{name}",
            value=targets,
        )
    return {**PRESETS[name.upper()], "targets": targets}


def _args(name: str, fields: Fields, role: str) -> Args | None:
    value = fields.get(role)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        fields.refuse(role, "an object with num_bits, type and strategy, or null")
    return Args(value, name, role)


def _format(fields: Fields, usual: object, weights: Args, inputs: Args | None) -> str:
    """Return the group's own format, else the block's, else the one its library would choose."""
    own = fields.get("format")
    form = usual if own is None else own
    form = _chosen(weights, inputs) if form is None else form
    kind = "float" if weights.is_float else "int"
    if not isinstance(form, str) or kind not in FORMATS.get(form, {}):
        allowed = [word for word, kinds in FORMATS.items() if kind in kinds]
        said = f"the block's format is {form!r}" if own is None else ""
        because = "; ".join(filter(None, (said, f"its weights are {kind}{weights.bits}")))
        fields.refuse("format", ", ".join(map(repr, allowed)), because)
    return form


def _chosen(weights: Args, inputs: Args | None) -> str:
    if weights.is_float:
        return _MICRO if weights.is_micro else "float-quantized"
    return "pack-quantized" if inputs is None else "int-quantized"
