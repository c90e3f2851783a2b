"""The tensors of an integer layer as compressed-tensors and int8 files name them.

Codes lie one a byte in ``weight``, or in the 32-bit words of ``weight_packed``, 1 to 8 bits each:
a dense stream of bits, or, in files of older releases, as many whole codes as a word holds. The
number of words tells which; where both take as many, the stream is meant. Zero points of packed
codes are packed too, down the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from quantdock.configs.fp8_tensors import (
    FLOAT_SCALES,
    ONE_VALUE,
    input_scale_slot,
    scale_shapes,
)
from quantdock.configs.header_check import HeaderCheck, Misfit
from quantdock.configs.stored import INPUT_SCALES, WEIGHT_SCALES
from quantdock.formats import ELEMENTS, WORD_BITS, QuantSpec, num_words
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

BYTES, WORDS = "weight", "weight_packed"  # where codes are
ZERO, GROUPS, SHAPE = "weight_zero_point", "weight_g_idx", "weight_shape"
INPUT_ZERO = "input_zero_point"
Stored = Mapping[str, StoredTensor]


def integer_slots(
    scheme: Scheme, n: int, k: int, facts: LayerFacts, codes: str = BYTES
) -> tuple[Slot, ...]:
    """Return the slots of one shard [n, k] whose codes are in the tensor ``codes``.

    What a scheme does not need (zero points of zeros, a group index in order, the scale of an
    input that is scaled at run time) is taken where headers show it, and checked.
    """
    spec = scheme.weight
    seen = {key.rpartition(".")[2]: tensor for key, tensor in (facts.stored or {}).items()}
    slots = [*_code_slots(spec, n, k, codes, seen), _scale_slot(spec, n, k)]
    if spec.zero or ZERO in seen:
        slots.append(_zero_slot(spec, n, k, codes, seen.get(ZERO)))
    if spec.act_order or GROUPS in seen:
        slots.append(Slot(name=GROUPS, shapes=((k,),), dtypes=("int32", "int64")))
    return (*slots, *_input_slots(scheme, seen))


def _code_slots(spec: QuantSpec, n: int, k: int, codes: str, seen: Stored) -> Iterator[Slot]:
    if codes == BYTES:
        yield Slot(name=BYTES, shapes=((n, k),), dtypes=("int8",))
        return
    words = _count_words(k, _bits(spec), seen.get(WORDS), axis=-1)
    yield Slot(name=WORDS, shapes=((n, words),), dtypes=("int32",))
    yield Slot(name=SHAPE, shapes=((2,),), dtypes=("int64", "int32"), row_tile=None, col_tile=None)


def scale_name(spec: QuantSpec) -> str:
    """Return what files call the scale: that of blocks has the name of fp8's."""
    return "weight_scale_inv" if spec.granularity == "block" else "weight_scale"


def _scale_slot(spec: QuantSpec, n: int, k: int) -> Slot:
    name = scale_name(spec)
    return Slot(
        name=name,
        shapes=scale_shapes(spec, n, k),
        dtypes=FLOAT_SCALES,
        aliases=tuple(other for other in WEIGHT_SCALES if other != name),
        row_tile=spec.rows,
        col_tile=spec.cols,
    )


def _zero_slot(spec: QuantSpec, n: int, k: int, codes: str, seen: StoredTensor | None) -> Slot:
    """Return the slot of the zero points: packed, or one a byte."""
    by_rows = spec.granularity in ("channel", "group")
    is_packed = codes == WORDS and by_rows and (seen is None or seen.dtype != "int8")
    words = _count_words(n, _bits(spec), seen, axis=0)
    return Slot(
        name=ZERO,
        shapes=((words, spec.grid(n, k)[1]),) if is_packed else scale_shapes(spec, n, k),
        dtypes=("int32",) if is_packed else ("int8",),
        row_tile=spec.rows,
        col_tile=spec.cols,
    )


def _count_words(count: int, bits: int, seen: StoredTensor | None, axis: int) -> int:
    """Return the words of ``count`` codes: a dense stream, unless headers show the loose layout."""
    dense, loose = (num_words(count, bits, dense=kind) for kind in (True, False))
    return loose if seen is not None and seen.shape and seen.shape[axis] == loose else dense


def _input_slots(scheme: Scheme, seen: Stored) -> Iterator[Slot]:
    """Yield what is stored of the layer's input; beside a dynamic scale it is not used."""
    if scheme.is_static or not seen.keys().isdisjoint(INPUT_SCALES):
        yield input_scale_slot(None if scheme.is_static else 1.0)
    needed = scheme.is_static and scheme.activation is not None and scheme.activation.zero
    if needed or INPUT_ZERO in seen:
        yield Slot(
            name=INPUT_ZERO,
            shapes=ONE_VALUE,
            dtypes=("int8", "int32"),
            default=None if needed else 0.0,
            row_tile=None,
            col_tile=None,
        )


def stored_shape(spec: QuantSpec, stored: Stored, codes: str = BYTES) -> tuple[int, ...]:
    """Return the (N, K) that the headers of one layer show; () where they show none.

    Words show K up to the next whole word; the stored shape says it exactly where it was read, and
    so do scales by groups.
    """
    tensor = stored.get(codes)
    if tensor is None or len(tensor.shape) != 2:
        return ()
    n, width = tensor.shape
    if codes == BYTES:
        return n, width
    said = stored[SHAPE].values if SHAPE in stored else ()
    if len(said) == 2 and said[0] == n and said[1] % (spec.cols or 1) == 0:
        return n, said[1]
    scale = next((stored[name] for name in WEIGHT_SCALES if name in stored), None)
    num_scales = prod(scale.shape) if scale is not None else 0
    if spec.cols is not None and num_scales and n and num_scales % n == 0:
        return n, num_scales // n * spec.cols
    return n, width * WORD_BITS // _bits(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLayout:
    """The tensors of a weight of ``scheme``, as checks of headers ask for them."""

    scheme: Scheme
    codes: str

    def shape(self, spec: QuantSpec, stored: Stored) -> tuple[int, ...]:
        """Return (N, K) as the headers show it."""
        return stored_shape(spec, stored, self.codes)

    def slots(self, spec: QuantSpec, n: int, k: int, names: Stored) -> tuple[Slot, ...]:
        """Return the slots of one shard [n, k] and its input."""
        facts = LayerFacts(prefix=self.codes, stored=names)
        return integer_slots(replace(self.scheme, weight=spec), n, k, facts, self.codes)


def misfit(scheme: Scheme, stored: Stored, codes: str = BYTES) -> Misfit | None:
    """Return what is wrong with the headers of one module, and what would fit; None: nothing."""
    check = HeaderCheck(
        layout=IntegerLayout(scheme=scheme, codes=codes),
        bits=range(1, 9) if codes == WORDS else (_bits(scheme.weight),),
        words=_words if codes == WORDS or scheme.weight.granularity == "group" else str,
        is_strict=True,
    )
    return check.misfit(scheme.weight, stored)


def _words(spec: QuantSpec) -> str:
    """Return ``spec`` as the JSON of packed or grouped codes states it."""
    groups = f"group_size = {spec.cols}" if spec.cols else f"strategy = {spec.granularity!r}"
    order = ", actorder = 'group'" if spec.act_order else ""
    return f"num_bits = {_bits(spec)}, {groups}, symmetric = {not spec.zero}{order}"


def _bits(spec: QuantSpec) -> int:
    return ELEMENTS[spec.element].bits
