"""What dialects write is what their readers read: tensors, blocks, and what has no words."""

from __future__ import annotations

import pytest
import torch

from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.numerics import quantize_weight
from quantdock.schemes import LayerFacts, parse_scheme

TOKEN, GROUP = "fp8_e4m3[1x*]:dynamic", "fp8_e4m3[1x128]:dynamic"
MX = "fp8_e4m3[1x32]:e8m0:ceil"
CASES = [
    (FINE_GRAINED, f"fp8_e4m3[128x128] x {GROUP}"),
    (FINE_GRAINED, "fp8_e4m3[64x32] x fp8_e4m3[1x32]:dynamic"),
    (FINE_GRAINED, "fp8_e4m3[128x128]:ceil x fp8_e4m3[1x128]:ceil:dynamic"),
    (FINE_GRAINED, "fp8_e5m2[128x128] x fp8_e5m2[1x128]:dynamic"),
    (COMPRESSED, f"fp8_e4m3[*x*] x {TOKEN}"),
    (COMPRESSED, "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic"),
    (COMPRESSED, "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
    (COMPRESSED, f"fp8_e4m3[1x*] x {TOKEN}"),
    (COMPRESSED, "fp8_e4m3[1x*]"),
    (COMPRESSED, f"fp8_e4m3[1x64] x {TOKEN}"),
    (COMPRESSED, f"fp8_e4m3[128x128] x {GROUP}"),
    (COMPRESSED, f"{MX} x {MX}:dynamic"),
    (COMPRESSED, MX),
]


@pytest.mark.parametrize(("dialect", "text"), CASES)
def test_what_is_written_is_read_back_bit_for_bit(dialect, text):
    scheme = parse_scheme(text)
    assert dialect.why_not({"a.b": scheme}) == ()
    weight = quantize_weight(torch.randn(200, 320), scheme.weight)
    if scheme.is_static:
        weight = type(weight)(segments=weight.segments, input_scale=torch.tensor([0.5]))
    tensors = dialect.encode(scheme, weight)
    described = dialect.describe(scheme, 200, 320)
    assert {name: (str(t.dtype)[6:], tuple(t.shape)) for name, t in tensors.items()} == {
        name: (stored.dtype, stored.shape) for name, stored in described.items()
    }
    config = dialect.reader.from_config(dialect.make_block({"a.b": scheme}, ("c",)))
    facts = LayerFacts(prefix="a.b", stored=described)
    assert config.scheme_for(facts).scheme == scheme
    slots = config.slots(scheme, 200, 320, facts)
    stored = {
        slot.name: next(tensors[s] for s in slot.spellings if s in tensors).reshape(slot.shape)
        for slot in slots
    }
    read = config.decode(scheme, [stored], facts)
    assert torch.equal(read.dequantize(), weight.dequantize())
    assert (read.input_scale is None) is not scheme.is_static
    assert config.scheme_for(LayerFacts(prefix="c")).kind == "unquantized"


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (FINE_GRAINED, f"{MX} x {MX}:dynamic"),
        (FINE_GRAINED, f"fp8_e4m3[1x*] x {TOKEN}"),
        (FINE_GRAINED, "fp8_e4m3[128x128]"),
        (FINE_GRAINED, "fp8_e4m3fnuz[128x128] x fp8_e4m3fnuz[1x128]:dynamic"),
        (COMPRESSED, "fp8_e5m2[1x*]"),
        (COMPRESSED, "fp8_e4m3fnuz[1x*]"),
        (COMPRESSED, "fp8_e4m3[*x*]:ceil"),
        (COMPRESSED, "int8[1x*]"),
    ],
)
def test_schemes_without_words_are_found_out(dialect, text):
    scheme = parse_scheme(text)
    (reason, *_) = dialect.why_not({"a.b": scheme})
    assert reason.startswith(dialect.name) and text in reason


def test_the_commonest_scheme_is_the_groups_and_others_go_by_name():
    channel, block = (
        parse_scheme(f"fp8_e4m3[1x*] x {TOKEN}"),
        parse_scheme(f"fp8_e4m3[128x128] x {GROUP}"),
    )
    layers = {"a.0.q": channel, "a.0.o": block, "a.1.q": channel, "a.1.o": block, "a.2.q": channel}
    made = COMPRESSED.make_block(layers, ("lm_head",))
    named, usual = made["config_groups"].values()
    assert (named["targets"], usual["targets"]) == (["a.0.o", "a.1.o"], ["Linear"])
    assert named["weights"]["block_structure"] == [128, 128]
    assert (made["format"], made["ignore"]) == ("float-quantized", ["lm_head"])
    mixed = COMPRESSED.make_block({**layers, "b": parse_scheme(f"{MX} x {MX}:dynamic")}, ())
    assert mixed["format"] == "mixed-precision"
    assert mixed["config_groups"]["group_0"]["format"] == "mxfp8-quantized"


def test_scales_are_stored_as_readers_expect_them():
    stored = COMPRESSED.describe(parse_scheme("fp8_e4m3[*x*] x fp8_e4m3[*x*]"), 4, 8)
    assert stored["weight_scale"].shape == stored["input_scale"].shape == (1,)
    stored = COMPRESSED.describe(parse_scheme(MX), 4, 64)
    assert (stored["weight_scale"].dtype, stored["weight_scale"].shape) == ("uint8", (4, 2))
    stored = FINE_GRAINED.describe(parse_scheme(CASES[0][1]), 200, 320)
    assert (stored["weight_scale_inv"].dtype, stored["weight_scale_inv"].shape) == (
        "float32",
        (2, 3),
    )
