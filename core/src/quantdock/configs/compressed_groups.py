"""One entry of config_groups: what a compressed-tensors file makes of the layers it targets.

>>> args = {"num_bits": 8, "type": "float", "strategy": "channel"}
>>> group = read_group("group_0", {"targets": ["Linear"], "weights": args}, "float-quantized")
>>> str(group.weight), group.activation
('fp8_e4m3[1x*]', None)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from quantdock.configs.fields import Fields
from quantdock.errors import MethodNotYetError
from quantdock.formats import QuantSpec

METHOD = "compressed-tensors"
_FORMATS = {"float-quantized": "f32", "naive-quantized": "f32", "mxfp8-quantized": "e8m0"}
_ELEMENT = "fp8_e4m3"
_MX_GROUP = 32
_DECODE = (
    "Decode it in transformers: from_pretrained(path, quantization_config="
    "CompressedTensorsConfig(dequantize=True)). Save the result with save_pretrained and load that "
    "folder here; it can be quantized at load with quantization='fp8_per_channel'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The layers of one group and how they are encoded; ``activation`` None: as given."""

    name: str
    targets: tuple[str, ...]
    weight: QuantSpec
    activation: QuantSpec | None

    @property
    def source(self) -> str:
        """Return where the group stands."""
        return f"config_groups.{self.name}"


def read_group(name: str, group: Any, usual_format: object) -> Group:
    """Return what config_groups says under ``name``.

    Args:
        usual_format: the block's own ``format``, for groups that name none.
    Raises:
        ConfigError: a field has an impossible value.
        MethodNotYetError: the group is in a format that is known and cannot be run yet.
    """
    if not isinstance(group, Mapping):
        not_yet(name, "is a list of targets for a preset")
    fields = Fields(group, f"{METHOD}: {name}")
    scale = _scale_type(name, fields.get("format") or usual_format)
    if fields.get("weights") is None:
        not_yet(name, "quantizes no weights")
    if fields.get("output_activations") is not None:
        not_yet(name, "quantizes the outputs of layers")
    weight = _read_weight(name, _args(name, fields, "weights"), scale)
    given = fields.get("input_activations") is None
    return Group(
        name=name,
        targets=tuple(entry.text for entry in fields.names("targets")),
        weight=weight,
        activation=None
        if given
        else _read_activation(name, _args(name, fields, "input_activations"), scale),
    )


def _scale_type(name: str, form: object) -> str:
    if form not in _FORMATS:
        not_yet(name, f"is stored as {form}")
    return _FORMATS[str(form)]


def _args(name: str, fields: Fields, role: str) -> Fields:
    """Return the fields of one QuantizationArgs, once it is certain that it says fp8."""
    value = fields.get(role)
    if not isinstance(value, Mapping):
        fields.refuse(role, "an object with num_bits, type and strategy, or null")
    args = Fields(value, f"{METHOD}: {name}.{role}")
    kind, bits = args.get("type") or "int", args.get("num_bits") or 8
    if (str(kind).lower(), bits) != ("float", 8):
        not_yet(name, f"has {role} in {kind}{bits}")
    if args.get("symmetric") is False:
        not_yet(name, f"has {role} with zero points")
    return args


def _read_weight(name: str, args: Fields, scale: str) -> QuantSpec:
    if args.get("dynamic"):
        args.refuse("dynamic", "false, or null", "weights are stored with their scales")
    rounding = "ceil" if scale == "e8m0" else "exact"
    rows, cols = _weight_tile(args)
    if scale == "e8m0" and (rows, cols) != (1, _MX_GROUP):
        args.refuse("group_size", str(_MX_GROUP), "the format is mxfp8-quantized")
    return QuantSpec(element=_ELEMENT, rows=rows, cols=cols, scale=scale, rounding=rounding)


def _weight_tile(args: Fields) -> tuple[int | None, int | None]:
    """Return the rows and columns that share a scale."""
    strategy = _strategy(args)
    if strategy == "block":
        return args.tile("block_structure") or args.refuse(
            "block_structure", "two positive integers (rows, columns)", "the strategy is 'block'"
        )
    tiles = {"tensor": (None, None), "channel": (1, None), "group": (1, _group_size(args))}
    return tiles[args.choice("strategy", {word: word for word in tiles}, strategy)]


def _read_activation(name: str, args: Fields, scale: str) -> QuantSpec:
    strategy = _strategy(args)
    dynamic = args.get("dynamic")
    if dynamic not in (True, False, None):
        not_yet(name, f"has input_activations with dynamic = {dynamic!r}")
    if not dynamic:
        if strategy != "tensor":
            args.refuse("strategy", "'tensor'", "static activations have one scale")
        return QuantSpec(element=_ELEMENT)
    tiles = {"tensor": (None, None), "token": (1, None), "group": (1, _group_size(args))}
    rows, cols = tiles[args.choice("strategy", {word: word for word in tiles}, strategy)]
    rounding = "ceil" if scale == "e8m0" else "exact"
    return QuantSpec(
        element=_ELEMENT, rows=rows, cols=cols, scale=scale, rounding=rounding, dynamic=True
    )


def _strategy(args: Fields) -> str:
    """Return the strategy; a block without one is told by its group size."""
    word = args.get("strategy")
    if word is not None:
        return str(word).lower()
    size = args.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _group_size(args: Fields) -> int | None:
    size = args.positive("group_size") if args.get("group_size") != -1 else None
    return None if size is None else int(size)


def not_yet(where: str, what: str) -> NoReturn:
    """Raise the error for a file of a kind that is known and cannot be run yet.

    Raises:
        MethodNotYetError: always.
    """
    raise MethodNotYetError(
        f"This {METHOD} checkpoint is of a kind that is known and not supported yet.",
        why=[f"{where} {what}", "supported: fp8 and mxfp8 weights, with fp8 activations or none"],
        todo=_DECODE,
        asked=METHOD,
        method=METHOD,
        runnable=(),
        elsewhere=(),
    )
