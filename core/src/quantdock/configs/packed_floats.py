"""PackedFloats: layers in floats of 4 or 6 bits that lie packed in bytes, the lowest first.

Their scales are powers of two (MX), or e4m3 numbers under a second scale for all (NV).

>>> spec = parse_spec("fp4_e2m1[1x32]:e8m0:even")
>>> reader = PackedFloats(Scheme(weight=spec), "here")
>>> facts = LayerFacts(prefix="up_proj")
>>> {slot.name: slot.shape for slot in reader.slots(reader.scheme, 8, 64, facts)}
{'weight': (8, 32), 'weight_scale': (8, 2)}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from quantdock.configs.fp8_tensors import FLOAT_SCALES, ONE_VALUE, may_store
from quantdock.configs.header_check import Misfit
from quantdock.configs.mixed_checkpoint import IntegerLayers
from quantdock.configs.stored import HEADERS, INPUT_SCALES, stored_for_all, stored_weights
from quantdock.formats import ELEMENTS, EXPONENT_BYTES, QuantSpec, parse_spec
from quantdock.methods.header_faults import HeaderFault, shape_fault
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

_BYTES = ("uint8", "int8")
_SCALES = {"e8m0": EXPONENT_BYTES, "e4m3": ("float8_e4m3fn",)}
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNames:
    """What a dialect calls the tensors beside a layer's codes, usual spellings first.

    ``multiplier`` is of the input; "" where no layer stores one. ``divides``: second scales, of
    weight and input, divide.
    """

    scale: tuple[str, ...] = ("weight_scale",)
    second: str = "weight_scale_2"
    input_scale: tuple[str, ...] = INPUT_SCALES
    multiplier: str = ""
    divides: bool = False


class PackedFloats(IntegerLayers):
    """Reads layers of one scheme whose weight is fp4 or fp6; its subclasses name their dialect.

    Headers show what no JSON says: which layers multiply their input first.
    """

    name = "packed floats"
    names: ClassVar[PackedNames] = PackedNames()

    def __init__(self, scheme: Scheme, stated: str) -> None:
        super().__init__(scheme, stated)
        self.bits = ELEMENTS[scheme.weight.element].bits

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme, with a multiplier of the input where headers show one."""
        multiplier, weights = self.names.multiplier, stored_weights(facts, self.codes)
        if not multiplier or not weights:
            return super().usual(facts)
        multiplied, wrong = stored_for_all(weights, multiplier)
        if wrong:
            return Decision.refused(wrong, HEADERS)
        scheme = replace(self.scheme, input_multiplier=multiplied)
        return Decision.quantized(scheme, "the file stores its codes and scales", self._stated)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) that the packed codes stand for."""
        stored = (facts.stored or {}).get(self.codes)
        if stored is None or len(stored.shape) < 2:
            return ()
        *rows, size = stored.shape
        return (*rows, size * _BYTE_BITS // self.bits)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the slots of one shard [n, k]."""
        spec, names = scheme.weight, self.names
        # Two fp4 codes are a byte. Four fp6 codes are three: no byte is of one group of columns.
        column = _BYTE_BITS // self.bits if _BYTE_BITS % self.bits == 0 else 1
        slots = [
            Slot(
                name=self.codes,
                shapes=((n, -(-k * self.bits // _BYTE_BITS)),),
                dtypes=_BYTES,
                col_tile=column,
            ),
            Slot(
                name=names.scale[0],
                shapes=(spec.grid(n, k),),
                dtypes=_SCALES[spec.scale],
                aliases=names.scale[1:],
                row_tile=spec.rows,
                col_tile=spec.cols,
            ),
        ]
        if spec.second is not None:
            slots.append(_one_value(names.second))
        if scheme.is_static:
            slots.append(_one_value(*names.input_scale))
        elif (spec.second or facts.stored) and may_store(facts, names.input_scale):
            slots.append(_one_value(*names.input_scale, default=1.0))  # it is not used
        if scheme.input_multiplier:
            slots.append(multiplier_slot(names.multiplier, k))
        return tuple(slots)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, one segment a shard; each keeps its second scale."""
        from quantdock.numerics.canonical import join

        return join([self._decode(scheme, tensors) for tensors in stored])

    def _decode(self, scheme: Scheme, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        from quantdock.numerics.byte_packing import unpack_bytes
        from quantdock.numerics.canonical import CanonicalWeight, Segment
        from quantdock.numerics.scales import decode_scale

        spec, names = scheme.weight, self.names
        second = None if spec.second is None else self._level(tensors[names.second]).view(1, 1)
        segment = Segment(
            spec=spec,
            codes=unpack_bytes(tensors[self.codes], bits=self.bits),
            scale=decode_scale(tensors[names.scale[0]]),
            second_scale=second,
        )
        multiplier = tensors.get(names.multiplier)
        return CanonicalWeight(
            segments=(segment,),
            input_scale=self._input_scale(scheme, tensors),
            input_multiplier=None if multiplier is None else multiplier.float().reshape(-1),
        )

    def _input_scale(self, scheme: Scheme, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Return the static scale of the input [1], or the one above its dynamic ones."""
        if not scheme.is_static:
            return None
        return self._level(tensors[self.names.input_scale[0]]).reshape(1)

    def _level(self, stored: Tensor) -> Tensor:
        """Return a second scale as a multiplier."""
        from quantdock.numerics.scales import decode_scale

        scale = decode_scale(stored)
        return scale.reciprocal() if self.names.divides else scale

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return why the headers of one module contradict ``scheme``.

        Codes and scales of two widths are told together: either may be the one that was cut.
        """
        if apart := self._apart(scheme, tensors):
            return Misfit(faults=(apart,), stated=f"{scheme.weight} has")
        if wrong := super().misfit(scheme, tensors):
            return wrong
        codes, cols = tensors[self.codes], scheme.weight.cols or 1
        shape = self.weight_shape(scheme, LayerFacts(prefix=self.name, stored=tensors))
        if len(shape) != 2:
            fault = shape_fault(self.codes, codes, "a matrix")
        elif codes.shape[-1] * _BYTE_BITS % self.bits or shape[-1] % cols:
            fault = HeaderFault(
                kind="shape",
                tensor=self.codes,
                found=f"of {codes.shape[-1]} bytes a row",
                expected=f"of whole groups of {cols} codes of {self.bits} bits",
            )
        else:
            return None
        return Misfit(faults=(fault,), stated=f"{scheme.weight} has")

    def _apart(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> HeaderFault | None:
        """Return that codes and scales are of two widths K, both in whole groups; None: not so."""
        cols = scheme.weight.cols
        name = next((name for name in self.names.scale if name in tensors), "")
        codes, scale = tensors[self.codes], tensors.get(name)
        shape = self.weight_shape(scheme, LayerFacts(prefix=self.name, stored=tensors))
        if scale is None or cols is None or not len(shape) == len(scale.shape) == 2:
            return None
        k, told = shape[1], scale.shape[1] * cols
        if scale.shape[0] != shape[0] or k % cols or k == told:
            return None
        return HeaderFault(
            kind="shape",
            tensor=self.codes,
            found=f"{list(codes.shape)} (K = {k})",
            expected=f"of K = {told} as {name} {list(scale.shape)} in groups of {cols}",
        )


def multiplier_slot(name: str, k: int) -> Slot:
    """Return the slot of numbers [k] that input features are multiplied by."""
    return Slot(name=name, shapes=((1, k), (k,)), dtypes=FLOAT_SCALES, row_tile=None)


def _one_value(*spellings: str, default: float | None = None) -> Slot:
    return Slot(
        name=spellings[0],
        shapes=ONE_VALUE,
        dtypes=FLOAT_SCALES,
        aliases=spellings[1:],
        default=default,
        row_tile=None,
        col_tile=None,
    )


def mx_spec(element: str, rounding: str = "even") -> QuantSpec:
    """Return the spec of an OCP MX weight: one power of two for 32 columns.

    >>> str(mx_spec("fp6_e2m3"))
    'fp6_e2m3[1x32]:e8m0:even'
    """
    return QuantSpec(element=element, rows=1, cols=32, scale="e8m0", rounding=rounding)


NVFP4 = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")
# One stored scale for all, and one for 16 features of a token at run time.
NVFP4_INPUT = parse_spec("fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]")
