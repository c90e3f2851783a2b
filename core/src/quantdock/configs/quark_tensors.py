"""The tensors of Quark's layers: codes of integers and floats, their scales and zero points.

Integers in groups are stored transposed, input features first, and so are their scales and zero
points. Four bits lie eight in a word along the last dimension, in ``pack_method`` "reorder" the
even ones before the odd ones, as AWQ has them. A file of symmetric weights may store zero points
all the same; they are all 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.fp8_tensors import (
    FLOAT_SCALES,
    ONE_VALUE,
    input_scale_slot,
    may_store,
    scale_shapes,
    scale_slot,
)
from quantdock.configs.mixed_checkpoint import Fp8Layers, IntegerLayers, Reader
from quantdock.configs.packed_floats import PackedFloats
from quantdock.configs.quark_spec import METHOD, LayerSpec, other_widths, scheme_words
from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

_PER_WORD = 8  # four-bit values in 32 bits
# Where in a word each of eight neighbours lies.
PLACES: Mapping[str, tuple[int, ...]] = {
    "order": (0, 1, 2, 3, 4, 5, 6, 7),
    "reorder": (0, 4, 1, 5, 2, 6, 3, 7),
}
_SCALE, _ZERO = "weight_scale", "weight_zero_point"
# Of int4 in fp8: the scale of the fp8 numbers, and of the codes that they are made of.
_OUTER_SCALE, _INNER_SCALE = _SCALE, "weight_scale_2"
_INPUT_ZERO = "input_zero_point"


class QuarkFloats(Fp8Layers):
    """Quark's fp8 layers: ``weight``, ``weight_scale`` and, where static, ``input_scale``."""

    name = METHOD

    def words_for(self, tile: QuantSpec) -> str:
        """Return the qscheme of such tiles, and their size."""
        return scheme_words(tile)


class QuarkPackedFloats(PackedFloats):
    """Quark's fp4 and fp6 layers: packed ``weight``, exponent bytes in ``weight_scale``."""

    name = METHOD


class QuarkIntegers(IntegerLayers):
    """Quark's integer layers."""

    name = METHOD

    def __init__(self, said: LayerSpec, pack_method: str) -> None:
        super().__init__(said.scheme, said.source)
        self._said = said
        self.bits = ELEMENTS[said.dtype].bits
        self.signed = not said.dtype.startswith("u")
        self.transposed = said.is_grouped
        self.pack_method = pack_method
        self.scale_name = _SCALE if said.scheme.weight.second is None else _INNER_SCALE

    def said_otherwise(self) -> Iterator[Iterator[tuple[str, IntegerLayers]]]:
        """Yield readers of other tiles in the same codes, then of other codes too."""
        if self.scheme.weight.second is None:
            for dtypes in ([self._said.dtype], other_widths(self._said.dtype)):
                said = (other for dtype in dtypes for other in self._said.others(dtype))
                yield ((words, QuarkIntegers(other, self.pack_method)) for words, other in said)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) that the stored codes stand for."""
        stored = facts.stored or {}
        weight, scale = stored.get("weight"), stored.get("weight_scale")
        if weight is None or len(weight.shape) != 2:
            return weight.shape if weight else ()
        first, last = weight.shape
        last *= _PER_WORD if self.bits == 4 else 1
        if not self.transposed:
            return first, last
        padded = scale is not None and scale.shape and 0 <= last - scale.shape[-1] < _PER_WORD
        return scale.shape[-1] if scale is not None and padded else last, first

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the slots of one shard [n, k]."""
        spec = scheme.weight
        rows, groups = spec.grid(n, k)
        dtypes = ("int32",) if self.bits == 4 else ("int8" if self.signed else "uint8",)
        weight = Slot(
            name="weight",
            shapes=(self._packed((k, n) if self.transposed else (n, k)),),
            dtypes=dtypes,
        )
        scale = Slot(
            name=self.scale_name,
            shapes=((groups, rows),) if self.transposed else scale_shapes(spec, n, k),
            dtypes=FLOAT_SCALES,
            row_tile=spec.rows,
            col_tile=spec.cols,
        )
        slots = [weight, scale]
        if spec.second is not None:
            slots.append(scale_slot(QuantSpec(element="fp8_e4m3"), n, k))
        if spec.zero or (facts.stored is not None and may_store(facts, (_ZERO,))):
            one = spec.granularity == "tensor"  # one value is not packed
            whole = self._packed((groups, rows) if self.transposed else (rows,))
            zero = Slot(
                name=_ZERO,
                shapes=ONE_VALUE if one else (whole,),
                dtypes=tuple(dict.fromkeys((*dtypes, "int32"))),
                row_tile=None if one else 1,
                col_tile=None if one else 1,
            )
            slots.append(zero)
        return (*slots, *self._input_slots(scheme, facts))

    def _input_slots(self, scheme: Scheme, facts: LayerFacts) -> tuple[Slot, ...]:
        if not scheme.is_static:
            return ()
        assert scheme.activation is not None, "static activations have a spec"
        zero = Slot(
            name=_INPUT_ZERO,
            shapes=ONE_VALUE,
            dtypes=("int8", "uint8", "int32"),
            default=None if scheme.activation.zero else 0.0,
            row_tile=None,
            col_tile=None,
        )
        return input_scale_slot(), zero

    def _packed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of values [..., count] as they are stored."""
        if self.bits != 4:
            return shape
        return (*shape[:-1], -(-shape[-1] // _PER_WORD))

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, one segment a shard.

        Raises:
            FormatError: zero points that are not 0, of symmetric weights or activations.
        """
        from quantdock.numerics.canonical import join

        names = facts.shards or (facts.prefix,) * len(stored)
        shards = zip(names, stored, strict=True)
        return join([self._decode(name, scheme, tensors) for name, tensors in shards])

    def _decode(self, name: str, scheme: Scheme, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        import torch

        from quantdock.numerics.canonical import CanonicalWeight, Segment
        from quantdock.numerics.dtypes import torch_dtype
        from quantdock.numerics.scales import decode_scale

        spec, scale = scheme.weight, decode_scale(tensors[self.scale_name])
        second = None if spec.second is None else decode_scale(tensors[_OUTER_SCALE]).reshape(1, 1)
        n, k = self._sizes(tensors)
        codes = self._values(tensors["weight"], n, k)
        grid = spec.grid(n, k)
        scale = scale.t() if self.transposed else scale
        zero = self._zero(name, spec, tensors, grid)
        if spec.zero and self.signed:  # as meant: unsigned
            half = 1 << self.bits - 1
            codes = codes.to(torch.int16) + half
            zero = None if zero is None else zero + half
        segment = Segment(
            spec=spec,
            codes=codes.to(torch_dtype(ELEMENTS[spec.element].storage)).contiguous(),
            scale=scale.reshape(grid).contiguous(),
            zero=zero,
            second_scale=second,
        )
        if not scheme.is_static:
            return CanonicalWeight(segments=(segment,))
        input_zero = tensors[_INPUT_ZERO].to(device=codes.device, dtype=torch.int32).reshape(1)
        asymmetric = scheme.activation is not None and scheme.activation.zero
        if not asymmetric:
            _require_zero(f"{name}.{_INPUT_ZERO}", input_zero)
        return CanonicalWeight(
            segments=(segment,),
            input_scale=decode_scale(tensors["input_scale"]).reshape(1),
            input_zero=input_zero if asymmetric else None,
        )

    def _sizes(self, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        """Return (N, K) of one shard."""
        first, last = tensors["weight"].shape
        if self.transposed:
            return int(tensors["weight_scale"].shape[-1]), first
        return first, last * (_PER_WORD if self.bits == 4 else 1)

    def _zero(
        self, name: str, spec: QuantSpec, tensors: Mapping[str, Tensor], grid: tuple[int, int]
    ) -> Tensor | None:
        """Return the zero points [grid] as the file counts them; None for symmetric weights."""
        import torch

        if _ZERO not in tensors:
            return None
        stored = tensors[_ZERO]
        if spec.granularity == "tensor":
            zero = stored.reshape(1, 1)
        elif self.transposed:
            zero = self._values(stored, *grid)
        else:
            zero = self._unpacked(stored.reshape(1, -1), grid[0]).reshape(grid)
        zero = zero.to(torch.int32)
        if not spec.zero:
            _require_zero(f"{name}.{_ZERO}", zero)
            return None
        return zero.contiguous()

    def _values(self, stored: Tensor, n: int, columns: int) -> Tensor:
        """Return stored values [n, columns], one each."""
        if self.transposed:
            return self._unpacked(stored, n).t()
        return self._unpacked(stored, columns)

    def _unpacked(self, stored: Tensor, count: int) -> Tensor:
        """Return the values that lie along the last dimension, ``count`` in each row."""
        if self.bits != 4:
            return stored
        return unpack_four_bits(stored, count, self.pack_method, signed=self.signed)


def unpack_four_bits(words: Tensor, count: int, pack_method: str, *, signed: bool) -> Tensor:
    """Return the values in ``words``.

    Shapes:
        words: int32 [rows, ceil(count / 8)]. Returns int8 or uint8 [rows, count].
    """
    import torch

    from quantdock.numerics.packing import unpack_bits

    rows, num_words = words.shape
    nibbles = unpack_bits(words, bits=4, count=num_words * _PER_WORD)
    values = nibbles.view(rows, num_words, _PER_WORD)[..., list(PLACES[pack_method])]
    values = values.reshape(rows, -1)[:, :count]
    if not signed:
        return values
    return (values.to(torch.int8) ^ 8) - 8  # two's complement of four bits


def read_quark_layers(said: LayerSpec, pack_method: str) -> Reader:
    """Return what reads the layers that are encoded as ``said``."""
    if said.is_integer:
        return QuarkIntegers(said, pack_method)
    if said.is_packed_float:
        return QuarkPackedFloats(said.scheme, said.source)
    return QuarkFloats(said.scheme.weight, said.scheme.activation, said.source)


def _require_zero(name: str, zero: Tensor) -> None:
    if bool((zero != 0).any()):
        raise FormatError(
            f"{name} is not 0, from {int(zero.min())} to {int(zero.max())}.",
            why=["the checkpoint says that its values are symmetric"],
            todo="Correct 'symmetric' in its quantization_config, or quantize the model again.",
        )
