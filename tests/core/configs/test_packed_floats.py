"""fp4 and fp6 that lie packed in bytes: against Quark's packing, cut for ranks, and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quantdock.configs.packed_floats import NVFP4, NVFP4_INPUT, PackedFloats, PackedNames, mx_spec
from quantdock.methods.cut import Cut, cut_weight
from quantdock.numerics import pack_bytes, quantize_weight
from quantdock.schemes import LayerFacts, Scheme, StoredTensor
from third_party import decode, decode_part, headers

UP = "model.layers.0.mlp.up_proj"


def reader(spec: Any, activation: Any = None, **names: Any) -> PackedFloats:
    class Reader(PackedFloats):
        name = "test"

    Reader.names = PackedNames(**names)
    return Reader(Scheme(weight=spec, activation=activation), "the block")


def stored(spec: Any, n: int = 48, k: int = 128) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of a layer as a file has them, and its real weight."""
    weight = quantize_weight(torch.randn(n, k, generator=torch.Generator().manual_seed(3)), spec)
    (segment,) = weight.segments
    bits = 4 if "fp4" in spec.element else 6
    tensors = {"weight": pack_bytes(segment.codes, bits=bits)}
    if spec.second is None:
        tensors["weight_scale"] = segment.scale.to(torch.float8_e8m0fnu)
    else:
        tensors["weight_scale"] = segment.scale.to(torch.float8_e4m3fn)
        tensors["weight_scale_2"] = segment.second_scale.reshape(())
    return tensors, weight.dequantize()


@pytest.mark.parametrize(("name", "element"), [("fp4", "fp4_e2m1"), ("fp6_e2m3", "fp6_e2m3")])
def test_bytes_are_quarks(golden: Path, name: str, element: str) -> None:
    vector = load_file(golden / "quark-pack" / f"{name}.safetensors")
    ones = torch.full((8, 2), 127, dtype=torch.uint8)
    tensors = {"weight": vector["packed"], "weight_scale": ones}
    made, facts = reader(mx_spec(element)), LayerFacts(prefix=UP, stored=headers(tensors))
    weight = decode(made, made.decide(facts, None).scheme, tensors, facts)
    assert torch.equal(weight.dequantize(), vector["values"])


SPECS = [mx_spec("fp4_e2m1"), mx_spec("fp6_e2m3"), mx_spec("fp6_e3m2"), NVFP4]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_rank_has_its_part_of_the_weight(spec: Any) -> None:
    """Rows, whole groups of columns, and columns that begin inside a group."""
    tensors, real = stored(spec)
    made, facts = reader(spec), LayerFacts(prefix=UP, stored=headers(tensors))
    whole = decode(made, made.scheme, tensors, facts)
    assert torch.equal(whole.dequantize(), real)
    for rows, columns in (
        (range(24, 48), range(128)),
        (range(48), range(64, 128)),
        (range(48), range(40, 88)),
    ):
        cut = Cut(n=48, k=128, rows=rows, columns=columns)
        part = decode_part(made, made.scheme, tensors, facts, cut)
        expected = real[rows.start : rows.stop, columns.start : columns.stop]
        assert torch.equal(part.dequantize(), expected)
        assert torch.equal(cut_weight(whole, [cut]).dequantize(), expected)


def test_half_of_the_bytes_are_read_for_half_of_the_columns() -> None:
    made = reader(NVFP4)
    (codes, *_) = made.slots(made.scheme, 48, 128, LayerFacts(prefix=UP))
    cut = Cut(n=48, k=128, rows=range(48), columns=range(64, 128))
    assert cut.part_of(codes) == (slice(0, 48), slice(32, 64))


def test_second_scales_may_divide() -> None:
    tensors, real = stored(NVFP4)
    tensors["global"] = 1 / tensors.pop("weight_scale_2")
    tensors["input_global"] = torch.tensor([8.0])
    names = {"second": "global", "input_scale": ("input_global",), "divides": True}
    made = reader(NVFP4, NVFP4_INPUT, **names)
    facts = LayerFacts(prefix=UP, stored=headers(tensors))
    weight = decode(made, made.decide(facts, None).scheme, tensors, facts)
    assert torch.allclose(weight.dequantize(), real, rtol=1e-6, atol=0)
    assert weight.input_scale.tolist() == [0.125]


def test_shards_keep_their_second_scales() -> None:
    made = reader(NVFP4)
    (gate, real), (up, _) = stored(NVFP4), stored(NVFP4)
    up["weight_scale_2"] = up["weight_scale_2"] * 3
    weight = made.decode(made.scheme, [gate, {**up}], LayerFacts(prefix=UP))
    first, second = (segment.second_scale for segment in weight.segments)
    assert torch.equal(second, first * 3)
    assert torch.equal(weight.dequantize()[:48], real)


def test_a_multiplier_is_taken_where_it_is_stored() -> None:
    made = reader(NVFP4, multiplier="pre_quant_scale")
    tensors, real = stored(NVFP4)
    multiplier = torch.linspace(0.5, 2.0, 128).to(torch.bfloat16)
    for extra in ({}, {"pre_quant_scale": multiplier}):
        given = {**tensors, **extra}
        facts = LayerFacts(prefix=UP, stored=headers(given))
        scheme = made.decide(facts, None).scheme
        assert scheme is not None and scheme.input_multiplier is bool(extra)
        weight = decode(made, scheme, given, facts)
        assert torch.equal(weight.dense(), real * multiplier.float() if extra else real)
    shards = {f"{shard}.{name}": t for shard in ("q_proj", "k_proj") for name, t in tensors.items()}
    shards["q_proj.pre_quant_scale"] = multiplier
    fused = LayerFacts(prefix="model.layers.0.self_attn.qkv_proj", stored=headers(shards))
    decision = made.decide(fused, None)
    assert decision.error and "pre_quant_scale is stored for model.layers.0.self_attn.q_proj" in (
        decision.because
    )


def shape(dtype: str, *sizes: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=sizes)


@pytest.mark.parametrize(
    ("spec", "tensors", "text"),
    [
        (
            NVFP4,
            {"weight": shape("uint8", 48, 64), "weight_scale": shape("float8_e4m3fn", 48, 4)},
            "weight is [48, 64] (K = 128), not of K = 64 as weight_scale [48, 4]",
        ),
        (
            NVFP4,
            {"weight": shape("uint8", 48, 56), "weight_scale": shape("float8_e4m3fn", 48, 8)},
            "weight is [48, 56] (K = 112), not of K = 128 as weight_scale [48, 8]",
        ),
        (
            NVFP4,
            {"weight": shape("uint8", 40, 64), "weight_scale": shape("float8_e4m3fn", 48, 8)},
            "weight_scale is [48, 8], not [40, 8]",
        ),
        (
            NVFP4,
            {"weight": shape("uint8", 48, 64), "weight_scale": shape("uint8", 48, 8)},
            "weight_scale is uint8, not float8_e4m3fn",
        ),
        (
            mx_spec("fp6_e2m3"),
            {"weight": shape("uint8", 48, 64), "weight_scale": shape("uint8", 48, 3)},
            "weight is of 64 bytes a row, not of whole groups of 32 codes of 6 bits",
        ),
        (
            mx_spec("fp4_e2m1"),
            {"weight": shape("uint8", 48, 24), "weight_scale": shape("uint8", 48, 2)},
            "weight is of 24 bytes a row, not of whole groups of 32 codes of 4 bits",
        ),
        (mx_spec("fp4_e2m1"), {"weight": shape("uint8", 48)}, "weight is [48], not a matrix"),
    ],
)
def test_headers_that_cannot_be_are_an_error_with_numbers(
    spec: Any, tensors: Any, text: str
) -> None:
    decision = reader(spec).decide(LayerFacts(prefix=UP, stored=tensors), None)
    assert decision.error and f"{UP}.{text}" in decision.because
