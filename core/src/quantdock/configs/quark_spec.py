"""What a Quark block says of one kind of layer: the encodings of its weight and of its input.

>>> tensor = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True}
>>> said = read_layer({"weight": tensor, "input_tensors": tensor}, "global_quant_config")
>>> str(said.scheme), said.dtype
('int8[*x*] x int8[*x*]', 'int8')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from quantdock.configs.fields import Fields
from quantdock.configs.fitting_tiles import GROUP_SIZES
from quantdock.configs.kind_to_come import kind_to_come, require_known
from quantdock.configs.packed_floats import mx_spec
from quantdock.formats import ELEMENTS, QuantSpec, SecondScale
from quantdock.schemes import Scheme

METHOD = "quark"
_INTEGERS = ("int4", "uint4", "int8", "uint8")
_FLOATS = ("fp8_e4m3", "fp8_e5m2")
# OCP MX: one power of two for 32 input features.
MX_WORDS = {"fp4": "fp4_e2m1", "fp6_e2m3": "fp6_e2m3", "fp6_e3m2": "fp6_e3m2"}
_MX_GROUP = 32
# How Quark makes powers of two of scales. Its "ceil" is another rule than ours for activations.
_POWERS = {"even": "even", "floor": "floor", "ceil": "ceil"}
_GIVEN = ("bfloat16", "float16", "float32")  # activations in these are left as they are
_SUPPORTED = (
    f"supported: weights in {', '.join((*_INTEGERS, *_FLOATS))} with one level of float scales, "
    f"in {', '.join(MX_WORDS)} by groups of {_MX_GROUP} with e8m0 scales, in int4 in fp8; "
    "activations likewise, in 8 bits or as given"
)
# What else Quark calls codes.
_TO_COME = (
    "int2",
    "int3",
    "uint2",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "mx",
    "mx6",
    "mx9",
    "bfp16",
)
_TWO_LEVELS = ("fp8_e4m3 per_tensor", "int4 per_channel")
_SCHEMES = ("per_tensor", "per_channel", "per_token", "per_group", "per_block")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """How layers are encoded; ``dtype`` is the file's word for their codes.

    ``is_grouped``: scales belong to groups of input features, be it one group only.
    """

    scheme: Scheme
    dtype: str
    is_grouped: bool
    source: str

    @property
    def is_integer(self) -> bool:
        """Return whether weights are integers."""
        return self.dtype in _INTEGERS

    def others(self, dtype: str) -> Iterator[tuple[str, LayerSpec]]:
        """Yield what else could be said of integer weights in ``dtype``, in the file's words."""
        prefix = "uint" if self.scheme.weight.element.startswith("u") else "int"
        codes = replace(self.scheme.weight, element=f"{prefix}{ELEMENTS[dtype].bits}")
        tiles = [(None, None), (1, None), *((1, size) for size in GROUP_SIZES)]
        for rows, cols in tiles:
            weight = replace(codes, rows=rows, cols=cols)
            said = replace(
                self,
                scheme=replace(self.scheme, weight=weight),
                dtype=dtype,
                is_grouped=cols is not None,
            )
            if said != self:
                other = "" if dtype == self.dtype else f"dtype = {dtype!r}, "
                yield f"{other}{scheme_words(weight)}", said

    @property
    def is_packed_float(self) -> bool:
        """Return whether weights are floats of less than 8 bits."""
        return self.dtype in MX_WORDS


def scheme_words(tile: QuantSpec) -> str:
    """Return how files say that scales are for such tiles."""
    size = {
        "group": f", group_size = {tile.cols}",
        "block": f", block_size = [{tile.rows}, {tile.cols}]",
    }
    return f"qscheme = 'per_{tile.granularity}'{size.get(tile.granularity, '')}"


def other_widths(dtype: str) -> tuple[str, ...]:
    """Return the integers of another width with the same sign."""
    sign = dtype.startswith("u")
    return tuple(word for word in _INTEGERS if word.startswith("u") is sign and word != dtype)


def read_layer(block: object, source: str, *, outputs: bool = False) -> LayerSpec | None:
    """Return what ``block`` says of the layers it is for; None: their weights stay plain.

    Args:
        source: where the block stands.
        outputs: the layers' outputs are keys and values, so what is said of them is the cache's.
    Raises:
        ConfigError: a field has an impossible value.
        MethodNotYetError: an encoding is known and cannot be run yet.
    """
    fields = Fields(block, f"{METHOD}: {source}")
    for role in ("bias", *(() if outputs else ("output_tensors",))):
        if fields.get(role) is not None:
            not_yet(f"{source}.{role}", "is quantized")
    if (stored := fields.get("weight")) is None:
        return None
    where = f"{source}.weight"
    is_double = isinstance(stored, list)
    args = _args(_inner(stored, where) if is_double else stored, where)
    weight = _read_weight(args, where)
    if is_double:
        weight = replace(weight, second=SecondScale())
    given = fields.get("input_tensors")
    where = f"{source}.input_tensors"
    activation = None if given is None else _read_activation(_args(given, where), where)
    scheme = Scheme(weight=weight, activation=activation)
    return LayerSpec(
        scheme=scheme,
        dtype=str(args.get("dtype")).lower(),
        is_grouped=_scheme(args) == "per_group",
        source=source,
    )


def _inner(levels: list[Any], where: str) -> object:
    """Return the spec of the codes of a weight in two levels: int4 that fp8 numbers are made of."""
    words = [f"{s.get('dtype')} {s.get('qscheme')}" for s in levels if isinstance(s, Mapping)]
    if tuple(words) != _TWO_LEVELS or levels[1].get("symmetric") is False:
        not_yet(where, f"has {len(levels)} levels ({', '.join(words)})")
    return levels[1]


def _args(block: object, where: str) -> Fields:
    """Return the fields of one tensor's spec, once it is certain that it is a known one."""
    if isinstance(block, list):
        not_yet(where, f"has {len(block)} levels")
    args = Fields(block, f"{METHOD}: {where}")
    dtype, scheme = args.get("dtype"), args.get("qscheme")
    if not isinstance(dtype, str):
        args.refuse("dtype", ", ".join(map(repr, (*_INTEGERS, *_FLOATS, *MX_WORDS))))
    word = str(dtype).lower()
    if word not in (known := (*_INTEGERS, *_FLOATS, *MX_WORDS, *_GIVEN)):
        require_known(METHOD, where, "dtype", dtype, known, _TO_COME)
        not_yet(where, f"is {dtype} {scheme or ''}".rstrip())
    plain = (None, "float32")
    taken = (None, "e8m0") if word in MX_WORDS else (*plain, "e8m0") if word in _FLOATS else plain
    for field, words in (("scale_format", taken), ("mx_element_dtype", (None,))):
        if args.get(field) not in words:
            not_yet(where, f"is {dtype} {scheme} with {field} = {args.get(field)!r}")
    if _has_powers(args) and (scheme != "per_group" or args.get("group_size") != _MX_GROUP):
        size = args.get("group_size")
        not_yet(where, f"is {dtype} {scheme} of {size} with e8m0 scales, not of {_MX_GROUP}")
    if args.get("is_scale_quant"):
        not_yet(where, f"is {dtype} {scheme} with scales that are quantized themselves")
    if args.get("zero_point_type") == "float32" and args.get("symmetric") is False:
        not_yet(where, f"is {dtype} {scheme} with zero points in float32")
    return args


def _has_powers(args: Fields) -> bool:
    """Return whether scales are powers of two; those of fp4 and fp6 are where nothing is said."""
    return args.get("scale_format") == "e8m0" or str(args.get("dtype")).lower() in MX_WORDS


def _read_powers(args: Fields, *, dynamic: bool = False) -> QuantSpec:
    dtype = str(args.get("dtype")).lower()
    rounding = args.choice("scale_calculation_mode", _POWERS, "even")
    return replace(mx_spec(MX_WORDS.get(dtype, dtype), rounding), dynamic=dynamic)


def _read_weight(args: Fields, where: str) -> QuantSpec:
    dtype = str(args.get("dtype")).lower()
    if dtype in _GIVEN:
        not_yet(where, f"is {dtype}: weights that are not quantized")
    if args.flag("is_dynamic"):
        args.refuse("is_dynamic", "false, or null", "weights are stored with their scales")
    if _has_powers(args):
        return _read_powers(args)
    rows, cols = _weight_tile(args, dtype, where)
    bits = ELEMENTS[dtype].bits
    zero = dtype in _INTEGERS and (dtype.startswith("u") or args.flag("symmetric") is False)
    return QuantSpec(element=f"uint{bits}" if zero else dtype, rows=rows, cols=cols, zero=zero)


def _weight_tile(args: Fields, dtype: str, where: str) -> tuple[int | None, int | None]:
    """Return the rows and columns that share a scale."""
    scheme = _scheme(args)
    axis = args.get("ch_axis")
    if scheme == "per_channel" and axis not in (None, 0):
        not_yet(where, f"is {dtype} per_channel along ch_axis = {axis}")
    if scheme == "per_group" and axis not in (None, 1, -1):
        not_yet(where, f"is {dtype} per_group along ch_axis = {axis}")
    if scheme == "per_token" or (scheme == "per_block" and dtype in _INTEGERS):
        not_yet(where, f"is {dtype} {scheme}")
    if scheme == "per_block":
        return args.tile("block_size") or args.refuse(
            "block_size", "two positive integers (rows, columns)", "qscheme is 'per_block'"
        )
    if scheme == "per_group":
        return 1, args.group_size("group_size")
    return (None, None) if scheme == "per_tensor" else (1, None)


def _read_activation(args: Fields, where: str) -> QuantSpec | None:
    dtype, scheme = str(args.get("dtype")).lower(), _scheme(args)
    if dtype in _GIVEN:
        return None
    dynamic = bool(args.flag("is_dynamic"))
    if dynamic and _has_powers(args):
        if args.get("scale_calculation_mode") == "ceil":
            not_yet(where, f"is {dtype} {scheme} with scale_calculation_mode = 'ceil'")
        return _read_powers(args, dynamic=True)
    if dtype in MX_WORDS and not dynamic:
        not_yet(where, f"is {dtype} {scheme} with static scales")
    if ELEMENTS[dtype].bits != 8 or scheme == "per_block":
        not_yet(where, f"is {dtype} {scheme}")
    if not dynamic and scheme != "per_tensor":
        not_yet(where, f"is {dtype} {scheme} with static scales")
    rows = None if scheme == "per_tensor" else 1
    cols = args.group_size("group_size") if scheme == "per_group" else None
    zero = dtype in _INTEGERS and (dtype.startswith("u") or args.flag("symmetric") is False)
    return QuantSpec(element=dtype, rows=rows, cols=cols, zero=zero, dynamic=dynamic)


def _scheme(args: Fields) -> str:
    word = args.choice("qscheme", {word: word for word in _SCHEMES}, "")
    return word or args.refuse("qscheme", ", ".join(map(repr, _SCHEMES)))


def not_yet(where: str, what: str) -> NoReturn:
    """Raise the error for a kind that ``what`` is called at ``where`` in the block.

    Raises:
        MethodNotYetError: always.
    """
    kind_to_come(METHOD, f"{where} {what}", _SUPPORTED)
