"""The layout of compressed-tensors: a group of layers for each scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quantdock.configs.compressed_args import METHOD
from quantdock.configs.compressed_formats import FORMATS
from quantdock.configs.compressed_readers import SmallFloats
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.configs.group_codes import middle, without_sign, zeros_without_sign
from quantdock.convert.dialect import (
    Dialect,
    as_spec_says,
    dense_form,
    scale_shape,
    stored_scale,
)
from quantdock.convert.integers import group_misfits
from quantdock.convert.packed_form import packed_form, packed_misfits
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import CanonicalWeight, num_words, pack_bits
from quantdock.schemes import Scheme, StoredTensor

# (bits, scale) of float weights -> their format.
_FLOATS = {
    (8, "f32"): "float-quantized",
    (8, "e8m0"): "mxfp8-quantized",
    (6, "e8m0"): "mxfp6-pack-quantized",
    (4, "e8m0"): "mxfp4-pack-quantized",
    (4, "e4m3"): "nvfp4-pack-quantized",
}
_BYTES = frozenset(word for word, form in FORMATS.items() if form.floats == "bytes")
_SCALE_WORDS = {"e8m0": "torch.uint8", "e4m3": "torch.float8_e4m3fn"}
_PACKED, _INTEGER = "pack-quantized", "int-quantized"
_MIXED = "mixed-precision"  # says that each group has a format of its own
_SCALE, _ZERO = "weight_scale", "weight_zero_point"


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    """Return the block: the commonest scheme is that of all linear layers, others go by name.

    Named layers come first: compressed-tensors warns of names that a class name before them took.
    """
    *named, usual = [scheme for scheme, _ in reversed(Counter(layers.values()).most_common())]
    made = [
        _group(scheme, [name for name, own in layers.items() if own == scheme]) for scheme in named
    ]
    groups = {f"group_{n}": group for n, group in enumerate([*made, _group(usual, ["Linear"])])}
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else _MIXED,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(plain),
        "kv_cache_scheme": None,
    }


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    given = scheme.activation is None
    return {
        "targets": targets,
        "format": _format(scheme),
        "weights": _args(scheme.weight, "channel"),
        "input_activations": None if given else _args(scheme.activation, "token"),
        "output_activations": None,
    }


def _format(scheme: Scheme) -> str:
    element, scale = ELEMENTS[scheme.weight.element], scheme.weight.scale
    if element.is_float:
        return _FLOATS.get((element.bits, scale), scale)
    return _PACKED if scheme.activation is None else _INTEGER


def _args(spec: QuantSpec | None, one_row: str) -> dict[str, Any]:
    """Return the QuantizationArgs of ``spec``; ``one_row`` is the word for a scale a row."""
    assert spec is not None, "an activation that stays as given has no args"
    element = ELEMENTS[spec.element]
    args: dict[str, Any] = {
        "num_bits": element.bits,
        "type": "float" if element.is_float else "int",
        "strategy": _strategy(spec, one_row),
        "symmetric": not spec.zero,
        "dynamic": "local" if spec.dynamic and spec.is_static else spec.dynamic,
    }
    if spec.granularity == "group":
        args["group_size"] = spec.cols
    if spec.granularity == "block":
        args["block_structure"] = [spec.rows, spec.cols]
    if spec.act_order:
        args["actorder"] = "group"
    if spec.scale in _SCALE_WORDS:
        args["scale_dtype"] = _SCALE_WORDS[spec.scale]
    if spec.zero:
        args["zp_dtype"] = "torch.int8"
    return args


def _strategy(spec: QuantSpec, one_row: str) -> str:
    if spec.granularity == "group" and spec.second is not None:
        return "tensor_group"
    return one_row if spec.granularity == "channel" else spec.granularity


_DENSE_DESCRIBE, _DENSE_ENCODE = dense_form(_SCALE)
_SMALL_DESCRIBE, _SMALL_ENCODE = packed_form(SmallFloats.codes, SmallFloats.names, (1,))


def _describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
    spec, form = scheme.weight, _format(scheme)
    if form in _BYTES:
        return _SMALL_DESCRIBE(scheme, n, k, scale_dtype)
    if form != _PACKED:
        stored = _DENSE_DESCRIBE(scheme, n, k, scale_dtype)
        if form == _INTEGER:  # signed, with or without a zero point
            stored["weight"] = StoredTensor(dtype="int8", shape=(n, k))
        if spec.zero:
            stored[_ZERO] = StoredTensor(dtype="int8", shape=scale_shape(spec, n, k))
        return stored
    bits, shape = ELEMENTS[spec.element].bits, scale_shape(spec, n, k)
    stored = {
        "weight_packed": StoredTensor(dtype="int32", shape=(n, num_words(k, bits))),
        _SCALE: StoredTensor(dtype=scale_dtype, shape=shape),
        "weight_shape": StoredTensor(dtype="int64", shape=(2,)),
    }
    if spec.zero:
        rows = num_words(shape[0], bits)
        stored[_ZERO] = StoredTensor(dtype="int32", shape=(rows, *shape[1:]))
    if spec.act_order:
        stored["weight_g_idx"] = StoredTensor(dtype="int32", shape=(k,))
    return stored


def _encode(scheme: Scheme, weight: CanonicalWeight, scale_dtype: str) -> dict[str, Tensor]:
    form = _format(scheme)
    if form in _BYTES:
        return _SMALL_ENCODE(scheme, weight, scale_dtype)
    if form != _PACKED:
        tensors = _DENSE_ENCODE(scheme, weight, scale_dtype)
        return tensors | (_signed(weight) if form == _INTEGER else {})
    (segment,) = weight.segments
    spec = segment.spec
    bits = ELEMENTS[spec.element].bits
    codes = without_sign(segment)
    tensors = {
        "weight_packed": pack_bits(codes, bits=bits),
        _SCALE: stored_scale(segment.scale, scale_dtype),
        "weight_shape": torch.tensor(codes.shape, dtype=torch.int64),
    }
    tensors[_SCALE] = tensors[_SCALE].reshape(scale_shape(spec, *codes.shape))
    if spec.zero:
        zero = zeros_without_sign(segment).t().contiguous()
        tensors[_ZERO] = pack_bits(zero, bits=bits).t().contiguous()
    if segment.group_index is not None:
        tensors["weight_g_idx"] = segment.group_index.to(torch.int32)
    return tensors


def _signed(weight: CanonicalWeight) -> dict[str, Tensor]:
    """Return codes from -2^(bits - 1) up, and the zero point shifted alike."""
    (segment,) = weight.segments
    if segment.zero is None:
        return {"weight": segment.codes}
    half = middle(segment.spec)
    shape = scale_shape(segment.spec, *segment.codes.shape)
    return {
        "weight": (segment.codes.to(torch.int16) - half).to(torch.int8),
        _ZERO: (segment.zero - half).to(torch.int8).reshape(shape),
    }


def _scale_dtype(spec: QuantSpec, model_dtype: str) -> str:
    """Return the model's dtype for integers: compressed-tensors reads their scales into it."""
    return as_spec_says(spec, model_dtype) if ELEMENTS[spec.element].is_float else model_dtype


def _misfits(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    yield from packed_misfits(scheme, n, k)
    if not ELEMENTS[scheme.weight.element].is_float:
        yield from group_misfits(scheme.weight, k)


def _cautions(layers: Mapping[str, Scheme]) -> Iterator[str]:
    ordered = [prefix for prefix, scheme in layers.items() if scheme.weight.act_order]
    if ordered:
        count = "1 layer is" if len(ordered) == 1 else f"{len(ordered)} layers are"
        yield (
            f"{count} in act-order, such as {ordered[0]}: QuantDock reads that, compressed-tensors "
            "0.20 and engines that use it refuse actorder='group'"
        )


COMPRESSED = Dialect(
    name=METHOD,
    reader=CompressedTensorsConfig,
    make_block=_make_block,
    describe=_describe,
    encode=_encode,
    scale_dtype=_scale_dtype,
    misfits=_misfits,
    divides=SmallFloats.names.divides,
    cautions=_cautions,
)
