"""Round to nearest: scales that files hold, codes nearest to them, and the values of others."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from quantdock.convert.rounding import round_weight
from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import quantize_weight, unpack_bits

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def rounded(values, spec, dtype="float16"):
    (segment,) = round_weight(values, parse_spec(spec), dtype).segments
    return segment


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "spec", ["int2[1x32]", "int4[1x64]", "int8[1x*]", "uint4[1x64]:zero", "uint3[1x32]:zero"]
)
def test_scales_are_numbers_of_their_dtype_and_no_code_is_nearer(spec, dtype):
    values = torch.randn(24, 128, generator=torch.Generator().manual_seed(1))
    made = rounded(values, spec, dtype)
    assert torch.equal(made.scale, made.scale.to(DTYPES[dtype]).float())
    columns = parse_spec(spec).cols or 128
    scale, values = made.scale.repeat_interleave(columns, 1).double(), values.double()
    zero = 0 if made.zero is None else made.zero.repeat_interleave(columns, 1)
    bits = int(spec[spec.index("int") + 3])
    low = 0 if made.zero is not None else -(1 << bits - 1)
    candidates = torch.arange(low, low + (1 << bits))
    every = scale[..., None] * (candidates - torch.as_tensor(zero)[..., None])
    chosen = (scale * (made.codes.int() - zero) - values).abs()
    assert torch.allclose(chosen, (every - values[..., None]).abs().amin(-1), atol=1e-7)


def test_symmetric_scales_reach_half_a_step_beyond_the_largest_code():
    made = rounded(torch.tensor([[7.5, -7.5, 1.0, 0.4]]), "int4[1x*]")
    assert (made.scale.tolist(), made.codes.tolist()) == ([[1.0]], [[7, -8, 1, 0]])


def test_zero_points_keep_zero_exact():
    made = rounded(torch.tensor([[0.0, 15.0], [-15.0, 0.0], [-5.0, 10.0]]), "uint4[1x*]:zero")
    assert made.zero.tolist() == [[0], [15], [5]]
    assert made.dequantize().tolist() == [[0.0, 15.0], [-15.0, 0.0], [-5.0, 10.0]]


@pytest.mark.parametrize("spec", ["int4[1x2]", "uint4[1x2]:zero"])
@pytest.mark.parametrize(("dtype", "smallest"), [("float16", 2.0**-24), ("float32", 2.0**-126)])
def test_tiles_of_zeros_have_a_finite_scale_and_stay_zeros(spec, dtype, smallest):
    made = rounded(torch.tensor([[0.0, 0.0, 1.0, -1.0]]), spec, dtype)
    assert made.scale[0, 0] == smallest
    assert made.dequantize()[0, :2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e6])
def test_scales_that_are_no_numbers_are_refused(value):
    with pytest.raises(FormatError, match=r"A scale would be .*, which float16 cannot hold"):
        rounded(torch.tensor([[1.0, value]]), "int4[1x*]")


def test_floats_are_quantized_as_at_load():
    values, spec = torch.randn(8, 64), parse_spec("fp8_e4m3[1x*]")
    made, expected = round_weight(values, spec, "float32"), quantize_weight(values, spec)
    assert torch.equal(made.dequantize(), expected.dequantize())


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("ct-w4a16-g128", "int4[1x128]"),
        ("ct-w4a16-asym-g128", "uint4[1x128]:zero"),
        ("ct-w8a8-int8", "int8[1x*]"),
    ],
)
def test_another_tools_rounding_gives_the_same(shared, name, spec):
    """llm-compressor computes round(x / scale + zero), so ties may end elsewhere beside a zero."""
    base = load_file(shared / "models/bases/stories260k-d128/model.safetensors")
    theirs = load_file(shared / "models" / name / "model.safetensors")
    for prefix in ("model.layers.0.self_attn.q_proj", "model.layers.3.mlp.down_proj"):
        values = base[f"{prefix}.weight"]
        made = rounded(values, spec, "float32")
        assert torch.equal(made.scale, theirs[f"{prefix}.weight_scale"])
        packed = theirs.get(f"{prefix}.weight_packed")
        if packed is None:
            assert torch.equal(made.codes, theirs[f"{prefix}.weight"])
            continue
        codes = unpack_bits(packed, bits=4, count=values.shape[1]).int()
        ours = made.codes.int() + (0 if made.zero is not None else 8)
        steps = values.float() / made.scale.repeat_interleave(128, 1)
        is_tie = (steps - steps.floor()) == 0.5
        assert torch.equal(ours[~is_tie], codes[~is_tie])
        assert made.zero is not None or torch.equal(ours, codes)
