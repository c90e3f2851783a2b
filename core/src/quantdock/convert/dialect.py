"""Dialects: how quantized layers are written, so that QuantDock and other readers understand them.

Converted checkpoints and saved models share them. What a dialect writes is read back by its own
config before anything is written, so a scheme that it cannot express is found out, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.errors import ConfigError, MethodNotYetError, SaveError
from quantdock.formats import ELEMENTS, EXPONENT_BYTES, QuantSpec
from quantdock.numerics import CanonicalWeight, decode_scale, encode_scale, torch_dtype
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

INPUT_SCALE, INPUT_ZERO = "input_scale", "input_zero_point"
_FLOATS = ("float16", "bfloat16", "float32")
_SCALE_DTYPES = {"f32": "float32", "bf16": "bfloat16", "e8m0": "uint8", "e4m3": "float8_e4m3fn"}

# The block of config.json for layers (prefix -> scheme) and the linear layers that stay plain.
MakeBlock = Callable[[Mapping[str, Scheme], Sequence[str]], dict[str, Any]]
# The tensors of a layer [n, k] by what follows its prefix, given the dtype of its scale.
Describe = Callable[[Scheme, int, int, str], dict[str, StoredTensor]]
# The tensors that Describe announces, for a weight of one segment.
Encode = Callable[[Scheme, CanonicalWeight, str], dict[str, Tensor]]
# The dtype in which the scales of a new weight are stored, given the model's.
ScaleDtype = Callable[[QuantSpec, str], str]
# Every reason a layer [n, k] cannot be stored.
Misfits = Callable[[Scheme, int, int], Iterator[str]]


def _as_said(scheme: Scheme) -> Scheme:
    return scheme


def _none(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    yield from ()


def _as_encoded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(tensors)


def _no_cautions(layers: Mapping[str, Scheme]) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way to write quantized layers.

    Attributes:
        name: as messages call it; that of its method, where it has one of its own.
        respell: the scheme that its reader makes of a scheme: of equal values, perhaps in other
            codes.
        version: the dialect as these layers need it, where there are several of one name.
        divides: second scales are stored as divisors.
        strangers: why layers of these names have no place in such files.
        collect: the tensors of a whole model, by their names, as files have them.
        cautions: what other readers make of these layers that a user should know.
    """

    name: str
    reader: type[QuantizationConfig]
    make_block: MakeBlock
    describe: Describe
    encode: Encode
    scale_dtype: ScaleDtype
    misfits: Misfits = _none
    respell: Callable[[Scheme], Scheme] = _as_said
    version: Callable[[Mapping[str, Scheme]], Dialect] | None = None
    divides: bool = False
    strangers: Callable[[Mapping[str, Scheme]], Iterator[str]] = _no_cautions
    collect: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = _as_encoded
    cautions: Callable[[Mapping[str, Scheme]], Iterator[str]] = _no_cautions

    def for_layers(self, layers: Mapping[str, Scheme]) -> Dialect:
        """Return the version of the dialect in which ``layers`` (prefix -> scheme) are written."""
        return self if self.version is None else self.version(layers)

    def why_not(self, layers: Mapping[str, Scheme]) -> tuple[str, ...]:
        """Return every reason these layers cannot be written; empty means they can."""
        if strangers := tuple(self.strangers(layers)):
            return strangers
        examples = {scheme: prefix for prefix, scheme in layers.items()}
        try:
            config = self.reader.from_config(self.make_block(layers, ()))
        except (ConfigError, MethodNotYetError) as error:
            return (f"{self.name} has no words for {', '.join(map(str, examples))}", *error.why)
        return tuple(
            f"{self.name} cannot say that {prefix} is {scheme}"
            for scheme, prefix in examples.items()
            if config.scheme_for(_facts(prefix)).scheme != self.respell(scheme)
        )


def _facts(prefix: str) -> LayerFacts:
    return LayerFacts(prefix=prefix, kind="experts" if ".experts." in prefix else "linear")


def as_spec_says(spec: QuantSpec, model_dtype: str) -> str:
    """Return the dtype of scales that the spec itself names."""
    return _SCALE_DTYPES[spec.scale]


def scale_shape(spec: QuantSpec, n: int, k: int) -> tuple[int, ...]:
    """Return the shape of the scale of a weight [n, k]; the only one is stored as [1]."""
    return (1,) if spec.granularity == "tensor" else spec.grid(n, k)


def dense_form(scale_name: str) -> tuple[Describe, Encode]:
    """Return how a layer is stored that has one code a byte in ``weight``.

    Args:
        scale_name: of the weight's scale, beside "weight".
    """

    def describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
        spec = scheme.weight
        stored = {
            "weight": StoredTensor(dtype=ELEMENTS[spec.element].storage, shape=(n, k)),
            scale_name: StoredTensor(dtype=scale_dtype, shape=scale_shape(spec, n, k)),
        }
        if scheme.is_static:
            stored[INPUT_SCALE] = StoredTensor(dtype="float32", shape=(1,))
            if scheme.activation is not None and scheme.activation.zero:
                stored[INPUT_ZERO] = StoredTensor(dtype="int8", shape=(1,))
        return stored

    def encode(scheme: Scheme, weight: CanonicalWeight, scale_dtype: str) -> dict[str, Tensor]:
        (segment,) = weight.segments
        shape = scale_shape(scheme.weight, *segment.codes.shape)
        tensors = {
            "weight": segment.codes,
            scale_name: stored_scale(segment.scale, scale_dtype).reshape(shape),
        }
        return tensors | static_input(scheme, weight)

    return describe, encode


def static_input(scheme: Scheme, weight: CanonicalWeight) -> dict[str, Tensor]:
    """Return what is stored of the input's scale and zero point, where they do not move."""
    if not scheme.is_static:
        return {}
    assert weight.input_scale is not None, "a static scheme has its input scale"
    tensors = {INPUT_SCALE: weight.input_scale.reshape(1)}
    if weight.input_zero is not None:
        tensors[INPUT_ZERO] = weight.input_zero.reshape(1).to(torch.int8)
    return tensors


def exact_dtype(scale: Tensor, usual: str) -> str:
    """Return the dtype that holds every value of the f32 ``scale``: the usual or a wider one."""
    if usual in EXPONENT_BYTES:
        return usual
    kept = (
        dtype
        for dtype in (usual, *_FLOATS)
        if bool((scale.to(torch_dtype(dtype)).to(torch.float32) == scale).all())
    )
    return next(kept, _FLOATS[-1])


def stored_scale(scale: Tensor, dtype: str) -> Tensor:
    """Return the f32 ``scale`` as it is stored, every value kept.

    Raises:
        SaveError: ``dtype`` does not hold one of them.
    """
    stored = encode_scale(scale, dtype)
    wrong = (decode_scale(stored) != scale) & ~scale.isnan()
    if bool(wrong.any()):
        raise SaveError(
            f"{int(wrong.sum())} of {scale.numel()} scales cannot be stored as {dtype}.",
            why=[f"{scale[wrong][0].item()!r} would become {decode_scale(stored)[wrong][0]:.9g}"],
            todo="Convert the 16-bit original instead, or into compressed-tensors.",
        )
    return stored
