"""One QuantizationArgs of compressed-tensors as a QuantSpec: of a weight, or of a layer's input.

>>> args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
>>> str(read_weight(Args(args, "group_0", "weights")))
'uint4[1x32]:zero'
>>> args = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
>>> str(read_activation(Args(args, "group_0", "input_activations")))
'int8[1x*]:dynamic'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from quantdock.configs.fields import Fields
from quantdock.errors import MethodNotYetError
from quantdock.formats import QuantSpec

METHOD = "compressed-tensors"
_FLOATS = {8: "fp8_e4m3"}
_MOST_BITS = 8  # of an integer
_MX_GROUP = 32
# What "actorder" says of the groups in a file: of those words only two permute them.
_ACT_ORDER = {"group": True, "dynamic": True, "weight": False, "static": False}
_KINDS = {"int": False, "float": True}
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
        is_micro: its scales are exponent bytes (microscaling).
    """

    def __init__(self, block: Mapping[str, Any], group: str, role: str) -> None:
        self._where = f"{group} has {role}"
        self._fields = Fields(block, f"{METHOD}: {group}.{role}")
        self.is_float = self._fields.choice("type", _KINDS, False)
        self.bits = self._bits()
        self.symmetric = self._fields.get("symmetric") is not False
        self.is_micro = str(self._fields.get("scale_dtype")) == "torch.uint8"
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
            not_yet(f"{self._where} in float{bits}")
        if not whole or not 1 <= bits <= _MOST_BITS:
            self._fields.refuse("num_bits", f"a whole number from 1 to {_MOST_BITS}")
        return int(bits)

    def element(self, *, offset: bool) -> str:
        """Return the element; ``offset``: integers with zero points count from 0."""
        if self.is_float:
            return _FLOATS[self.bits]
        return f"{'uint' if offset and not self.symmetric else 'int'}{self.bits}"

    def tile(self, *strategies: str, because: str) -> tuple[int | None, int | None]:
        """Return the rows and columns of one scale; the strategy is one of ``strategies``."""
        word = self.strategy
        if word not in strategies:
            self._fields.refuse("strategy", ", ".join(map(repr, strategies)), because)
        size, block = self._fields.get("group_size"), self._fields.get("block_structure")
        if size not in (None, -1) and word != "group":
            self._fields.refuse("group_size", "null, or -1", f"the strategy is {word!r}")
        if block is not None and word != "block":
            self._fields.refuse("block_structure", "null", f"the strategy is {word!r}")
        if word == "block":
            return self._fields.tile("block_structure") or self._fields.refuse(
                "block_structure", "two positive integers (rows, columns)", f"strategy is {word!r}"
            )
        if word == "group":
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
            self._fields.refuse("group_size", "a whole number above 0", "the strategy is 'group'")
        return size

    def dynamic(self) -> bool:
        """Return whether scales are computed at run time."""
        dynamic = self._fields.get("dynamic")
        if dynamic not in (True, False, None):
            not_yet(f"{self._where} with dynamic = {dynamic!r}")
        return bool(dynamic)

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


def read_weight(args: Args, *, micro: bool = False) -> QuantSpec:
    """Return how a weight is stored; ``micro``: the format has exponent bytes for scales."""
    if args.dynamic():
        args.refuse("dynamic", "false, or null", "weights are stored with their scales")
    words = ("tensor", "channel", "group", "block")
    rows, cols = args.tile(*words, because="weights are meant")
    if micro and (rows, cols) != (1, _MX_GROUP):
        args.refuse("group_size", str(_MX_GROUP), "the format is mxfp8-quantized")
    return QuantSpec(
        element=args.element(offset=True),
        rows=rows,
        cols=cols,
        scale="e8m0" if micro else "f32",
        rounding="ceil" if micro else "exact",
        zero=not args.symmetric,
        act_order=args.act_order(),
    )


def read_activation(args: Args, *, micro: bool = False) -> QuantSpec:
    """Return how a layer's input is quantized; static scales are one for all tokens."""
    element, zero = args.element(offset=False), not args.symmetric
    if not args.dynamic():
        args.tile("tensor", because="static activations have one scale")
        return QuantSpec(element=element, zero=zero)
    rows, cols = args.tile("tensor", "token", "group", because="dynamic activations are meant")
    return QuantSpec(
        element=element,
        rows=rows,
        cols=cols,
        scale="e8m0" if micro else "f32",
        rounding="ceil" if micro else "exact",
        zero=zero,
        dynamic=True,
    )


def not_yet(what: str, todo: str = _DECODE) -> NoReturn:
    """Raise the error for a file of a kind that is known and cannot be run yet.

    Raises:
        MethodNotYetError: always.
    """
    raise MethodNotYetError(
        f"This {METHOD} checkpoint is of a kind that is known and not supported yet.",
        why=[
            what,
            "supported: weights in fp8, mxfp8 and integers of 1 to 8 bits; activations in fp8 and "
            "integers, or as given",
        ],
        todo=todo,
        asked=METHOD,
        method=METHOD,
        runnable=(),
        elsewhere=(),
    )
