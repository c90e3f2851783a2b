"""One QuantizationArgs of compressed-tensors as a QuantSpec: of a weight, or of a layer's input.

>>> args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
>>> str(read_weight(Args(args, "group_0", "weights"), FORMATS["pack-quantized"]))
'uint4[1x32]:zero'
>>> args = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
>>> str(read_activation(Args(args, "group_0", "inputs"), FORMATS["int-quantized"]))
'int8[1x*]:dynamic'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from quantdock.configs.compressed_formats import FORMATS, MX_GROUP, Format
from quantdock.configs.fields import Fields
from quantdock.configs.kind_to_come import kind_to_come
from quantdock.formats import QuantSpec, SecondScale

METHOD = "compressed-tensors"
_FLOATS = {4: "fp4_e2m1", 6: "fp6_e2m3", 8: "fp8_e4m3"}
_FLOATS_TO_COME = (2, 3, 5, 7, 16)
_MOST_BITS = 8  # of an integer
# What "scale_dtype", with or without "torch.", says of scales.
_SCALES = {
    "uint8": "e8m0",
    "float8_e8m0fnu": "e8m0",
    "float8_e4m3fn": "e4m3",
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), "f32"),
}
_MXFP8 = FORMATS["mxfp8-quantized"]
_LOCAL = "local"  # dynamic scales of groups under a stored one for all
# What "actorder" says of the groups in a file: of those words only two permute them.
_ACT_ORDER = {"group": True, "dynamic": True, "weight": False, "static": False}
_KINDS = {"int": False, "float": True}
_BLOCK = re.compile(r"\s*([1-9]\d*)\s*x\s*([1-9]\d*)\s*")
_DECODE = (
    "Decode it in transformers: from_pretrained(path, quantization_config="
    "CompressedTensorsConfig(dequantize=True)). Save the result with save_pretrained and load that "
    "folder here; it can be quantized at load with quantization='fp8_per_channel'."
)

ORIGINAL = (
    "Load the 16-bit original of this model and quantize it at load: "
    "quantization='fp8_per_channel', or 'int8_per_channel_weight_only'."
)


class Args:
    """The fields of one QuantizationArgs.

    Attributes:
        is_float: its values are floats, not integers.
        bits: the width of one value.
        symmetric: it has no zero points.
        scale: how its scales are stored, f32, e8m0 or e4m3; None where that is not said.
    """

    def __init__(self, block: Mapping[str, Any], group: str, role: str) -> None:
        self._where = f"{group} has {role}"
        self._fields = Fields(block, f"{METHOD}: {group}.{role}")
        self.is_float = self._fields.choice("type", _KINDS, False)
        self.bits = self._bits()
        self.symmetric = self._fields.get("symmetric") is not False
        self.scale = self._scale()
        if self.is_float and not self.symmetric:
            not_yet(f"{self._where} in floats with zero points")

    def _bits(self) -> int:
        bits = self._fields.get("num_bits")
        bits = 8 if bits is None else bits
        if isinstance(bits, Mapping):
            what = f"{self._where} with a num_bits for each module ({', '.join(bits)})"
            not_yet(what, ORIGINAL)
        whole = isinstance(bits, int) and not isinstance(bits, bool)
        if self.is_float and whole and bits not in _FLOATS:
            if bits in _FLOATS_TO_COME:
                not_yet(f"{self._where} in float{bits}")
            self._fields.refuse("num_bits", ", ".join(map(str, _FLOATS)), "the type is 'float'")
        if not whole or not 1 <= bits <= _MOST_BITS:
            self._fields.refuse("num_bits", f"a whole number from 1 to {_MOST_BITS}")
        return int(bits)

    def _scale(self) -> str | None:
        said = self._fields.get("scale_dtype")
        if said is None:
            return None
        word = str(said).lower().removeprefix("torch.")
        return _SCALES.get(word) or self._fields.refuse("scale_dtype", ", ".join(_SCALES))

    def element(self, *, offset: bool) -> str:
        """Return the element; ``offset``: integers with zero points count from 0."""
        if self.is_float:
            return _FLOATS[self.bits]
        return f"{'uint' if offset and not self.symmetric else 'int'}{self.bits}"

    @property
    def group(self) -> int | None:
        """Return the group size as it is stated; None where it is not."""
        size = self._fields.get("group_size")
        return size if isinstance(size, int) else None

    def tile(self, *strategies: str, because: str) -> tuple[int | None, int | None]:
        """Return the rows and columns of one scale; the strategy is one of ``strategies``."""
        word = self.strategy
        if word not in strategies:
            self._fields.refuse("strategy", ", ".join(map(repr, strategies)), because)
        size, block = self._fields.get("group_size"), self._fields.get("block_structure")
        is_group = word in ("group", "tensor_group")
        if size not in (None, -1) and not is_group:
            self._fields.refuse("group_size", "null, or -1", f"the strategy is {word!r}")
        if block is not None and word != "block":
            self._fields.refuse("block_structure", "null", f"the strategy is {word!r}")
        if word == "block":
            return self._block()
        if is_group:
            return 1, self._group_size()
        return (None if word == "tensor" else 1), None

    @property
    def strategy(self) -> str:
        """Return the strategy; where it is not said, the group size tells."""
        word, size = self._fields.get("strategy"), self._fields.get("group_size")
        if word is not None:
            return str(word).lower()
        return "tensor" if size is None else "channel" if size == -1 else "group"

    def _group_size(self) -> int:
        size = self._fields.get("group_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            because = f"the strategy is {self.strategy!r}"
            self._fields.refuse("group_size", "a whole number above 0", because)
        return size

    def _block(self) -> tuple[int, int]:
        """Return the rows and columns of a block, of a pair or as older files spell it: 128x128."""
        block = self._fields.get("block_structure")
        if isinstance(block, str) and (match := _BLOCK.fullmatch(block)):
            return int(match[1]), int(match[2])
        return self._fields.tile("block_structure") or self._fields.refuse(
            "block_structure", "two positive integers (rows, columns)", "the strategy is 'block'"
        )

    @property
    def is_dynamic(self) -> bool:
        """Return whether scales are computed at run time, all of them or the local ones."""
        return bool(self._dynamic)

    @property
    def is_local(self) -> bool:
        """Return whether one stored scale stands above those that are computed."""
        return self._dynamic == _LOCAL

    @property
    def _dynamic(self) -> bool | str:
        dynamic = self._fields.get("dynamic")
        word = dynamic.lower() if isinstance(dynamic, str) else dynamic
        if word is None or isinstance(word, bool) or word == _LOCAL:
            return word or False
        self._fields.refuse("dynamic", "true, false or 'local'")

    def act_order(self) -> bool:
        """Return whether a stored index names the group of each column."""
        value = self._fields.get("actorder")
        permutes = value
        if not isinstance(value, bool):
            permutes = self._fields.choice("actorder", _ACT_ORDER, False)
        if permutes and (self.is_float or self.strategy != "group"):
            because = "only groups of integers are permuted"
            self._fields.refuse("actorder", "null, 'weight' or 'static'", because)
        return bool(permutes)

    def refuse(self, name: str, allowed: str, because: str) -> NoReturn:
        """Raise the ConfigError for the field ``name``."""
        self._fields.refuse(name, allowed, because)


def read_weight(args: Args, form: Format) -> QuantSpec:
    """Return how a weight of the format ``form`` is stored."""
    if args.is_dynamic:
        args.refuse("dynamic", "false, or null", "weights are stored with their scales")
    if form.group is not None:
        return _small_weight(args, form)
    words = ("tensor", "channel", "group", "block")
    rows, cols = args.tile(*words, because="weights are meant")
    return QuantSpec(
        element=args.element(offset=True),
        rows=rows,
        cols=cols,
        zero=not args.symmetric,
        act_order=args.act_order(),
    )


def _small_weight(args: Args, form: Format) -> QuantSpec:
    """Return the spec of a weight whose format says what its groups and scales are."""
    because = f"the format has {form.scale} scales of {form.group} columns"
    two_levels = form.scale == "e4m3"
    words = ("tensor_group", "group") if two_levels else ("group",)
    rows, cols = args.tile(*words, because=because)
    if cols != form.group:
        args.refuse("group_size", str(form.group), because)
    if args.scale not in (None, form.scale):
        args.refuse("scale_dtype", _words_for(form.scale), because)
    if args.act_order():
        args.refuse("actorder", "null", because)
    second = SecondScale() if args.strategy == "tensor_group" else None
    return QuantSpec(
        element=args.element(offset=True),
        rows=rows,
        cols=cols,
        scale=form.scale,
        rounding=_rounding(form.scale, args.bits),
        second=second,
    )


def read_activation(args: Args, form: Format) -> QuantSpec:
    """Return how a layer's input is quantized; static scales are one for all tokens."""
    element, zero = args.element(offset=False), not args.symmetric
    if not args.is_dynamic:
        args.tile("tensor", because="static activations have one scale")
        return QuantSpec(element=element, zero=zero)
    words = ("tensor_group",) if args.is_local else ("tensor", "token", "group", "tensor_group")
    because = "the scales of groups are computed under a stored one" if args.is_local else ""
    rows, cols = args.tile(*words, because=because or "dynamic activations are meant")
    scale = _input_scale(args, form, cols)
    return QuantSpec(
        element=element,
        rows=rows,
        cols=cols,
        scale=scale,
        rounding=_rounding(scale, args.bits),
        zero=zero,
        dynamic=True,
        second=SecondScale() if args.is_local else None,
    )


def _input_scale(args: Args, form: Format, cols: int | None) -> str:
    """Return what computed scales are rounded to; older files of small floats do not say it."""
    scale = args.scale
    if scale is None and args.is_float:
        is_micro = cols == MX_GROUP and (args.bits < 8 or form is _MXFP8)
        scale = "e8m0" if is_micro else "e4m3" if args.strategy == "tensor_group" else None
    if scale in ("e8m0", "e4m3") and not args.is_float:
        args.refuse("scale_dtype", "null, or a float type", "integers are meant")
    if scale == "e8m0" and cols != MX_GROUP:
        args.refuse("group_size", str(MX_GROUP), "its scales are exponent bytes")
    return scale or "f32"


def _rounding(scale: str, bits: int) -> str:
    """Return how such files round scales to powers of two: up for fp8, else to the nearest."""
    if scale != "e8m0":
        return "exact"
    return "ceil" if bits == 8 else "even"


def _words_for(scale: str) -> str:
    return ", ".join(f"'torch.{word}'" for word, meant in _SCALES.items() if meant == scale)


def not_yet(what: str, todo: str = _DECODE) -> NoReturn:
    """Raise the error for a file of a kind that is known and cannot be run yet.

    Raises:
        MethodNotYetError: always.
    """
    supported = (
        "supported: weights in fp8, mxfp8, mxfp6, mxfp4, nvfp4 and integers of 1 to 8 bits; "
        "activations in floats and integers, or as given"
    )
    kind_to_come(METHOD, what, supported, todo=todo)
