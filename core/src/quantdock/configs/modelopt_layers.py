"""ModelOpt's layers by their algorithm: a row says what an algorithm stores, a reader decodes it.

>>> reader = read_algorithm({"quant_algo": "W4A16_AWQ", "group_size": 64}, "quantization_config")
>>> str(reader.usual(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int4[1x64] + input multiplier'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from quantdock.configs.fields import Fields
from quantdock.configs.fp8_tensors import FLOAT_SCALES, input_scale_slot, scale_shapes
from quantdock.configs.kind_to_come import kind_to_come, require_known
from quantdock.configs.mixed_checkpoint import Fp8Layers, IntegerLayers, Reader
from quantdock.configs.packed_floats import (
    NVFP4,
    NVFP4_INPUT,
    PackedFloats,
    PackedNames,
    multiplier_slot,
    mx_spec,
)
from quantdock.configs.stored import HEADERS, StoredWeight, stored_for_all, stored_weights
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

METHOD = "modelopt"
MIXED = "MIXED_PRECISION"  # an algorithm for each layer
MULTIPLIER = "pre_quant_scale"
_USUAL_GROUP = 128  # ModelOpt's own, where a block states none


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What ``quant_algo`` stands for.

    ``may_multiply``: layers may store a multiplier of their input, which is not folded elsewhere.
    """

    weight: QuantSpec
    activation: QuantSpec | None = None
    may_multiply: bool = False

    @property
    def scheme(self) -> Scheme:
        """Return what layers compute with, before their headers say more."""
        return Scheme(
            weight=self.weight, activation=self.activation, input_multiplier=self.may_multiply
        )


_FP8 = QuantSpec(element="fp8_e4m3")
_MXFP8 = mx_spec("fp8_e4m3", "ceil")
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "FP8": Algorithm(weight=_FP8, activation=_FP8),
        "FP8_PER_CHANNEL_PER_TOKEN": Algorithm(
            weight=replace(_FP8, rows=1), activation=replace(_FP8, rows=1, dynamic=True)
        ),
        "FP8_PB_WO": Algorithm(weight=replace(_FP8, rows=128, cols=128)),
        "W8A16": Algorithm(weight=QuantSpec(element="int8", rows=1)),
        "W8A8_SQ_PER_CHANNEL": Algorithm(
            weight=QuantSpec(element="int8", rows=1),
            activation=QuantSpec(element="int8"),
            may_multiply=True,
        ),
        "W4A16_AWQ": Algorithm(
            weight=QuantSpec(element="int4", rows=1, cols=_USUAL_GROUP), may_multiply=True
        ),
        "NVFP4": Algorithm(weight=NVFP4, activation=NVFP4_INPUT),
        "NVFP4_AWQ": Algorithm(weight=NVFP4, activation=NVFP4_INPUT, may_multiply=True),
        "W4A16_NVFP4": Algorithm(weight=NVFP4),
        "MXFP8": Algorithm(weight=_MXFP8, activation=replace(_MXFP8, dynamic=True)),
    }
)
# What else ModelOpt and the engine it is made for write.
_TO_COME = (
    "W4A8_AWQ",
    "W4A8_NVFP4_FP8",
    "W4A8_MXFP4_FP8",
    "W4A8_MXFP4_MXFP8",
    "W4A16_MXFP4",
    "MXFP4",
    "NVFP4_SVD",
    "NVFP4_SVDQUANT",
    "FP8_PB_REAL",
    "FP8_BLOCK_SCALES",
    "INT8",
    "W4A16",
    "W4A16_GPTQ",
    "W8A16_GPTQ",
    "W4A8_QSERVE_PER_GROUP",
    "W4A8_QSERVE_PER_CHANNEL",
    "W8A8_SQ_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    "NO_QUANT",
)


def read_algorithm(block: object, source: str) -> Reader:
    """Return what reads the layers of the algorithm that ``block`` names.

    Raises:
        ConfigError: a field has an impossible value, or nobody knows the algorithm.
        MethodNotYetError: the algorithm is known and cannot be run yet.
    """
    fields = Fields(block, f"{METHOD}: {source}")
    word = fields.get("quant_algo")
    algorithm = ALGORITHMS.get(str(word).upper())
    if algorithm is None:
        if word is not None:
            require_known(METHOD, source, "quant_algo", str(word), (*ALGORITHMS, MIXED), _TO_COME)
        not_yet(source, f"says quant_algo = {word!r}")
    if fields.flag("has_zero_point"):
        not_yet(source, f"says {word} with has_zero_point = true")
    weight, group_size = algorithm.weight, _group_size(fields)
    size = f", group_size = {group_size}" if group_size else ""
    stated = f"{source}: quant_algo = {word!r}{size}"
    if not ELEMENTS[weight.element].is_float:
        return ModelOptIntegers(algorithm, group_size, stated)
    if weight.granularity == "group" and group_size not in (None, weight.cols):
        fields.refuse("group_size", f"{weight.cols}, or null", f"{word} has no other")
    if ELEMENTS[weight.element].bits == 8:
        return ModelOptFloats(weight, algorithm.activation, stated)
    return ModelOptFp4(algorithm.scheme, stated)


def _group_size(fields: Fields) -> int | None:
    """Return the group size that is stated; 0 and absence state none."""
    return fields.group_size("group_size") if fields.get("group_size") else None


class ModelOptFloats(Fp8Layers):
    """ModelOpt's fp8 layers: ``weight``, ``weight_scale`` and, where static, ``input_scale``."""

    name = METHOD


class ModelOptFp4(PackedFloats):
    """ModelOpt's NVFP4 layers: ``weight``, ``weight_scale``, ``weight_scale_2``, ``input_scale``.

    The last is the second scale of activations, where those are fp4 too.
    """

    name = METHOD
    names = PackedNames(multiplier=MULTIPLIER)


class ModelOptIntegers(IntegerLayers):
    """ModelOpt's integer layers: signed codes, with a scale a row or a group of a row.

    Headers show what the JSON leaves out: how wide groups are, and which layers have a multiplier
    of their input (``pre_quant_scale``) that could not be folded into the layer before.
    """

    name = METHOD

    def __init__(self, algorithm: Algorithm, group_size: int | None, stated: str) -> None:
        weight = algorithm.weight
        if group_size and weight.granularity == "group":
            weight = replace(weight, cols=group_size)
        super().__init__(replace(algorithm.scheme, weight=weight), stated)
        # Two rows share a byte, the even one in its low half.
        self.packed = 8 // ELEMENTS[weight.element].bits

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme, as the headers of this layer complete it."""
        weights = stored_weights(facts)
        if not weights:
            return super().usual(facts)
        multiplied, wrong = stored_for_all(weights, MULTIPLIER)
        if wrong:
            return Decision.refused(wrong, HEADERS)
        sizes = {self._group_of(stored) for stored in weights}
        if len(sizes) > 1:
            because = f"the parts of one layer have groups of {sorted(map(str, sizes))} columns"
            return Decision.refused(because, HEADERS)
        spec = replace(self.scheme.weight, cols=sizes.pop())
        if spec != self.scheme.weight:
            self.contradictions.add(facts.prefix, f"stored as {spec}, though {self._stated}")
        scheme = replace(self.scheme, weight=spec, input_multiplier=multiplied)
        return Decision.quantized(scheme, "the file stores its codes and scales", self._stated)

    def _group_of(self, stored: StoredWeight) -> int | None:
        """Return how many columns share a scale: as stated, unless the scale has other columns."""
        spec, scale = self.scheme.weight, stored.scale
        if spec.cols is None or scale is None or len(stored.weight.shape) != 2:
            return spec.cols
        n, k = self._shape(stored.weight.shape)
        columns = scale[1].shape[-1] if len(scale[1].shape) > 1 else 1
        fits = spec.grid(n, k)[1] == columns or columns < 1 or k % columns
        return spec.cols if fits else k // columns

    def _shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        *stack, rows, k = stored
        return (*stack, rows * self.packed, k)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) that the stored codes stand for."""
        shape = super().weight_shape(scheme, facts)
        return self._shape(shape) if shape else ()

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the slots of one shard [n, k]."""
        spec, dtype = scheme.weight, "int8" if self.packed == 1 else "uint8"
        slots = [
            Slot(name="weight", shapes=((-(-n // self.packed), k),), dtypes=(dtype,)),
            Slot(
                name="weight_scale",
                shapes=scale_shapes(spec, n, k),
                dtypes=FLOAT_SCALES,
                row_tile=spec.rows,
                col_tile=spec.cols,
            ),
        ]
        if scheme.is_static:
            slots.append(input_scale_slot())
        if scheme.input_multiplier:
            slots.append(multiplier_slot(MULTIPLIER, k))
        return tuple(slots)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, one segment a shard."""
        from quantdock.numerics.canonical import CanonicalWeight, Segment, join
        from quantdock.numerics.scales import decode_scale

        spec = scheme.weight
        parts = []
        for tensors in stored:
            codes = tensors["weight"] if self.packed == 1 else unpack_rows(tensors["weight"])
            scale = decode_scale(tensors["weight_scale"]).reshape(spec.grid(*codes.shape))
            multiplier = tensors.get(MULTIPLIER)
            parts.append(
                CanonicalWeight(
                    segments=(Segment(spec=spec, codes=codes, scale=scale),),
                    input_scale=decode_scale(tensors["input_scale"]).reshape(1)
                    if scheme.is_static
                    else None,
                    input_multiplier=None if multiplier is None else multiplier.float().reshape(-1),
                )
            )
        return join(parts)


def unpack_rows(packed: Tensor) -> Tensor:
    """Return signed four-bit codes of which two rows share a byte, the even one in the low half.

    Shapes:
        packed: uint8 [N / 2, K]. Returns int8 [N, K].
    """
    import torch

    halves = torch.stack((packed & 15, packed >> 4), dim=1).to(torch.int8)
    return ((halves ^ 8) - 8).reshape(2 * packed.shape[0], packed.shape[1])


def not_yet(where: str, what: str) -> NoReturn:
    """Raise the error for a kind that ``what`` is called at ``where`` in the block.

    Raises:
        MethodNotYetError: always.
    """
    kind_to_come(METHOD, f"{where} {what}", f"supported: {', '.join(ALGORITHMS)}")
