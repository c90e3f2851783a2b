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
from typing import Any

from quantdock.configs.compressed_args import (
    METHOD,
    ORIGINAL,
    Args,
    not_yet,
    read_activation,
    read_weight,
)
from quantdock.configs.compressed_formats import FORMATS, MX_GROUP, NV_GROUP, SPARSE
from quantdock.configs.compressed_presets import PRESETS
from quantdock.configs.fields import Fields
from quantdock.errors import ConfigError
from quantdock.schemes import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The layers of one group and how they are encoded; ``scheme`` None: not at all."""

    name: str
    targets: tuple[str, ...]
    scheme: Scheme | None
    storage: str  # see Format

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
    word = _format(fields, usual_format, weights, inputs)
    if FORMATS[word].is_plain:
        return Group(name=name, targets=targets, scheme=None, storage="plain")
    storage = FORMATS[word].storage_of(is_float=weights.is_float, bits=weights.bits)
    assert storage is not None, "the format has codes of this type"
    scheme = _scheme(name, weights, inputs, word)
    return Group(name=name, targets=targets, scheme=scheme, storage=storage)


def _scheme(name: str, weights: Args, inputs: Args | None, word: str) -> Scheme:
    """Return how the layers of one group are encoded, in the format called ``word``."""
    form = FORMATS[word]
    if weights.is_float and inputs is not None and not inputs.is_float:
        inputs.refuse("type", "'float'", f"{name}.weights are floats")
    weight = read_weight(weights, form)
    if inputs is None:
        return Scheme(weight=weight)
    scheme = Scheme(weight=weight, activation=read_activation(inputs, form))
    # Beside packed floats the scale of an input is a divisor above others, elsewhere the only one.
    if scheme.is_static and (form.floats == "bytes") is not inputs.is_local:
        kind = "dynamic = 'local'" if inputs.is_local else "static scales"
        not_yet(f"{name} has input_activations with {kind} beside weights in {word}")
    return scheme


def _require_known(name: str, form: object) -> None:
    """Raise for a format that is known and cannot be read yet."""
    if form in SPARSE:
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
    has, bits = weights.is_float, weights.bits
    known = FORMATS.get(form) if isinstance(form, str) else None
    if known is None or known.storage_of(is_float=has, bits=bits) is None:
        allowed = [w for w, f in FORMATS.items() if f.storage_of(is_float=has, bits=bits)]
        said = f"the block's format is {form!r}" if own is None else ""
        kind = "float" if weights.is_float else "int"
        because = "; ".join(filter(None, (said, f"its weights are {kind}{bits}")))
        fields.refuse("format", ", ".join(map(repr, allowed)), because)
    return str(form)


# (bits, columns of a group) -> the format of such floats.
_SMALL = {
    (4, MX_GROUP): "mxfp4-pack-quantized",
    (6, MX_GROUP): "mxfp6-pack-quantized",
    (4, NV_GROUP): "nvfp4-pack-quantized",
}


def _chosen(weights: Args, inputs: Args | None) -> str:
    if not weights.is_float:
        return "pack-quantized" if inputs is None else "int-quantized"
    is_micro = weights.bits == 8 and weights.group == MX_GROUP and weights.scale == "e8m0"
    usual = "mxfp8-quantized" if is_micro else "float-quantized"
    return _SMALL.get((weights.bits, weights.group or 0), usual)
