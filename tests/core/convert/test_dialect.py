"""What dialects write is what their readers read: tensors, blocks, and what has no words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.convert.awq import AWQ
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.dialect import exact_dtype, stored_scale
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.convert.gptq import GPTQ
from quantdock.convert.modelopt import MODELOPT
from quantdock.convert.quark import QUARK
from quantdock.convert.rounding import round_weight
from quantdock.convert.w8a8_int8 import W8A8_INT8
from quantdock.errors import SaveError
from quantdock.schemes import LayerFacts, StoredTensor, parse_scheme

TOKEN, GROUP = "fp8_e4m3[1x*]:dynamic", "fp8_e4m3[1x128]:dynamic"
INT_TOKEN = "int8[1x*]:dynamic"
MX = "fp8_e4m3[1x32]:e8m0:ceil"
FP4, FP6, NV = (
    "fp4_e2m1[1x32]:e8m0:even",
    "fp6_e2m3[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
)
NV_INPUT = "fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
E3M2 = "fp6_e3m2[1x32]:e8m0:even"
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
    (COMPRESSED, FP4),
    (COMPRESSED, f"{FP4} x {FP4}:dynamic"),
    (COMPRESSED, f"{FP4} x {GROUP}"),
    (COMPRESSED, FP6),
    (COMPRESSED, f"{FP6} x {MX}:dynamic"),
    (COMPRESSED, NV),
    (COMPRESSED, f"{NV} x {NV_INPUT}"),
    (COMPRESSED, "fp4_e2m1[1x16]:e4m3"),
    (MODELOPT, NV),
    (MODELOPT, f"{NV} x {NV_INPUT}"),
    (MODELOPT, f"{MX} x {MX}:dynamic"),
    (MODELOPT, "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
    (MODELOPT, "fp8_e4m3[128x128]"),
    (MODELOPT, "int8[1x*]"),
    (QUARK, FP4),
    (QUARK, f"{FP4} x {FP4}:dynamic"),
    (QUARK, f"{E3M2} x {E3M2}:dynamic"),
    (QUARK, f"{FP6} x fp8_e4m3[1x32]:e8m0:even:dynamic"),
    *((COMPRESSED, f"int{bits}[1x64]") for bits in (2, 3, 4, 5, 6, 7, 8)),
    (COMPRESSED, "int4[1x*]"),
    (COMPRESSED, "uint4[1x32]:zero"),
    (COMPRESSED, "uint8[1x*]:zero"),
    (COMPRESSED, f"int8[1x*] x {INT_TOKEN}"),
    (COMPRESSED, "int8[1x*] x int8[1x*]:zero:dynamic"),
    (COMPRESSED, "int8[1x*] x int8[*x*]"),
    (COMPRESSED, "int8[*x*] x int8[*x*]:zero"),
    (COMPRESSED, f"int4[1x64] x {INT_TOKEN}"),
    *((GPTQ, f"int{bits}[1x64]") for bits in (2, 3, 4, 8)),
    *((GPTQ, f"uint{bits}[1x32]:zero") for bits in (2, 3, 4, 8)),
    (GPTQ, "int4[1x*]"),
    (AWQ, "uint4[1x64]:zero"),
    (AWQ, "int4[1x64]"),
    (AWQ, "uint4[1x*]:zero"),
    (W8A8_INT8, f"int8[1x*] x {INT_TOKEN}"),
]


@pytest.mark.parametrize(("dialect", "text"), CASES)
def test_what_is_written_is_read_back_bit_for_bit(dialect, text):
    scheme, n, k = parse_scheme(text), 192, 320
    dialect = dialect.for_layers({"a.b": scheme})
    assert dialect.why_not({"a.b": scheme}) == ()
    dtype = dialect.scale_dtype(scheme.weight, "bfloat16")
    divides = dialect.divides
    weight = round_weight(torch.randn(n, k), scheme.weight, dtype, divides=divides)
    if scheme.is_static:
        zero = torch.tensor([-7], dtype=torch.int32) if scheme.activation.zero else None
        weight = replace(weight, input_scale=torch.tensor([0.5]), input_zero=zero)
    tensors = dialect.encode(scheme, weight, dtype)
    described = dialect.describe(scheme, n, k, dtype)
    assert {name: (str(t.dtype)[6:], tuple(t.shape)) for name, t in tensors.items()} == {
        name: (stored.dtype, stored.shape) for name, stored in described.items()
    }
    config = dialect.reader.from_config(dialect.make_block({"a.b": scheme}, ("c",)))
    facts = LayerFacts(prefix="a.b", stored=described)
    read_as = config.scheme_for(facts).scheme
    assert read_as == dialect.respell(scheme)
    stored = {
        slot.name: next(tensors[s] for s in slot.spellings if s in tensors).reshape(slot.shape)
        for slot in config.slots(read_as, n, k, facts)
    }
    read = config.decode(read_as, [stored], facts)
    assert torch.equal(read.dequantize(), weight.dequantize())
    for name in ("input_scale", "input_zero"):
        before, after = getattr(weight, name), getattr(read, name)
        assert (after is None) is (before is None) and (before is None or after == before)
    plain = LayerFacts(prefix="c", stored={"weight": StoredTensor(dtype="float32", shape=(4, 4))})
    assert config.scheme_for(plain).kind == "unquantized" and config.notes() == ()


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
        (COMPRESSED, "int4[1x64] + input multiplier"),
        (COMPRESSED, E3M2),
        (COMPRESSED, f"{NV} x {NV_INPUT}-dynamic"),
        (COMPRESSED, "fp4_e2m1[1x32]:e8m0:floor"),
        (MODELOPT, FP4),
        (MODELOPT, f"{NV} x {NV_INPUT}-dynamic"),
        (MODELOPT, f"{NV} + input multiplier"),
        (QUARK, NV),
        (QUARK, f"fp8_e4m3[1x*] x {TOKEN}"),
        (QUARK, f"{FP4} + input multiplier"),
        (GPTQ, "int5[1x64]"),
        (GPTQ, f"int4[1x64] x {INT_TOKEN}"),
        (GPTQ, "fp8_e4m3[1x*]"),
        (AWQ, "int8[1x64]"),
        (AWQ, "uint4[1x64]:zero:act-order"),
        (W8A8_INT8, "int8[1x*]"),
        (W8A8_INT8, f"int8[*x*] x {INT_TOKEN}"),
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
    stored = COMPRESSED.describe(parse_scheme("fp8_e4m3[*x*] x fp8_e4m3[*x*]"), 4, 8, "float32")
    assert stored["weight_scale"].shape == stored["input_scale"].shape == (1,)
    stored = COMPRESSED.describe(parse_scheme(MX), 4, 64, "uint8")
    assert (stored["weight_scale"].dtype, stored["weight_scale"].shape) == ("uint8", (4, 2))
    stored = FINE_GRAINED.describe(parse_scheme(CASES[0][1]), 200, 320, "float32")
    assert (stored["weight_scale_inv"].dtype, stored["weight_scale_inv"].shape) == (
        "float32",
        (2, 3),
    )


def test_scales_are_never_rounded_in_silence():
    assert exact_dtype(torch.tensor([0.5]), "bfloat16") == "bfloat16"
    assert exact_dtype(torch.tensor([1 / 3]).half().float(), "bfloat16") == "float16"
    assert exact_dtype(torch.tensor([1 / 3]), "float16") == "float32"
    with pytest.raises(SaveError, match="1 of 2 scales cannot be stored as float16"):
        stored_scale(torch.tensor([0.5, 1 / 3]), "float16")
