"""The int4 product of XPU, against an emulation of the operator written from its documentation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from integer_weights import assert_same, make_integers
from quantdock import Policy, dispatch_for
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.errors import FormatError, NoKernelError
from quantdock.kernel import Problem
from quantdock.layers import RowParallelLinear
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins
from quantdock_xpu.configs import GptqXpuConfig
from quantdock_xpu.int4_product import Int4Product
from toy_gptq import GPTQ, in_act_order
from toy_ranks import filled, ranks, weight_of

OPERATOR = "_weight_int4pack_mm_with_scales_and_zeros"


def emulate(x, words, group, scale, zero):
    """Return what the operator does, with each of its demands."""
    (m, k), (n, num_words) = x.shape, words.shape
    assert x.is_contiguous() and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    assert words.dtype == torch.int32 and num_words * 8 == k
    assert group > 1 and group % 32 == 0 and k % group == 0
    assert scale.shape == zero.shape == (k // group, n)
    assert scale.dtype == x.dtype and zero.dtype == torch.int8
    assert scale.is_contiguous() and zero.is_contiguous()
    nibbles = [(words >> 4 * place) & 15 for place in range(8)]
    codes = torch.stack(nibbles, dim=2).reshape(n, k).double()
    wide = [t.double().T.repeat_interleave(group, dim=1) for t in (scale, zero)]
    return (x.double() @ ((codes - wide[1]) * wide[0]).T).to(x.dtype).view(m, n)


@pytest.fixture(scope="module", autouse=True)
def operator():
    """Give the operator, which only XPU has, to the CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(OPERATOR, emulate, "CPU")
    yield
    library._destroy()


def layer_of(scheme, weight, dtype="bfloat16"):
    n, k = weight.shape
    sizes = tuple(s.codes.shape[0] for s in weight.segments)
    kernel = Int4Product(Problem(scheme=parse_scheme(scheme), n=n, k=k, shards=sizes, dtype=dtype))
    return kernel, kernel.prepare(weight)


@settings(max_examples=60, deadline=None)
@given(
    element=st.sampled_from(["int4", "uint4"]),
    tile=st.sampled_from(["1x*", "1x32", "1x64", "1x96", "1x128", "1x512"]),
    marks=st.sampled_from(["", ":zero", ":act-order", ":zero:act-order"]),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    blocks=st.integers(1, 7),
    m=st.sampled_from([0, 1, 3, 33]),
    shared=st.booleans(),
    multiplier=st.sampled_from(["", " + input multiplier"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
def test_it_agrees_with_the_weight_in_f64(
    element, tile, marks, sizes, blocks, m, shared, multiplier, dtype
):
    """Tolerance: scales are rounded to x's dtype, and so is the result, before and after bias."""
    marks = "" if tile == "1x*" and "act" in marks else marks
    scheme, k = f"{element}[{tile}]{marks}{multiplier}", 32 * blocks
    weight = make_integers(scheme, sizes, k, seed=blocks, shared=shared)
    kernel, tensors = layer_of(scheme, weight, dtype)
    assert_same(weight, kernel.restore(tensors))
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(getattr(torch, dtype))
    bias = torch.linspace(-5, 5, sum(sizes))
    result = kernel.apply(tensors, x, bias)
    real = weight.dequantize().double()
    rows = x.double() if weight.input_multiplier is None else x.double() * weight.input_multiplier
    expected = rows @ real.T + bias.double()
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    allowed = 2 * step * (expected.abs() + 5) + 2 * step * (rows.abs() @ real.abs().T)
    assert (result.shape, result.dtype) == (expected.shape, x.dtype)
    assert bool(((result.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("scheme", ["int4[1x64] + input multiplier", "uint4[1x32]:zero:act-order"])
def test_gradients_are_those_of_the_dequantized_layer(scheme):
    """Tolerance: scales and the gradient itself are rounded to bfloat16."""
    weight = make_integers(scheme, [16, 8], 128, shared=False)
    kernel, tensors = layer_of(scheme, weight)
    x, bias = (torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (128, 24))
    x, bias = x.bfloat16()[None].requires_grad_(), bias.requires_grad_()
    result = kernel.apply(tensors, x, bias)
    with torch.no_grad():
        assert torch.equal(result, kernel.apply(tensors, x, bias))
    result.sum().backward()
    expected = weight.dense().sum(0)
    assert float((x.grad[0] - expected).abs().amax() / expected.abs().amax()) < 2e-2
    assert torch.equal(bias.grad, torch.ones(24))


def test_words_hold_eight_codes_from_the_lowest_bits_up():
    weight = make_integers("int4[1x32]", [1], 32)
    weight.segments[0].codes[0, :8] = torch.arange(-8, 0, dtype=torch.int8)
    _, tensors = layer_of("int4[1x32]", weight)
    assert tensors["weight_words"][0, 0].item() == 0x76543210
    assert tensors["group_zero"].unique().tolist() == [8]
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == {
        "weight_words": (torch.int32, (1, 4)),
        "weight_scale": (torch.float32, (1, 1)),
        "group_scale": (torch.bfloat16, (1, 1)),
        "group_zero": (torch.int8, (1, 1)),
    }


def test_groups_of_unequal_size_are_refused():
    weight = make_integers("int4[1x32]:act-order", [16], 128, equal=False)
    with pytest.raises(FormatError, match="groups of unequal size") as caught:
        layer_of("int4[1x32]:act-order", weight)
    assert "QUANTDOCK_KERNEL=reference" in caught.value.todo


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_divide_act_order_are_refused_before_that_or_run_the_reference(size):
    tensors, real = encode_gptq(in_act_order(128, 256, 64)), in_act_order(128, 256, 64).dequantize()
    block = {**GPTQ, "group_size": 64, "sym": False, "desc_act": True}

    def layers(size, policy):
        config = GptqXpuConfig.from_config(block).bind(dispatch_for("xpu:bmg", policy))
        options = {"quant_config": config, "params_dtype": torch.bfloat16}
        made = (RowParallelLinear(256, 128, False, group=group, **options) for group in ranks(size))
        return [filled(layer, [tensors]) for layer in made]

    with use_plugins("quantdock_xpu.plugin"):
        (whole,) = layers(1, Policy())
        assert whole.quant_method.selection.kernel.name == "xpu_int4_product"
        with pytest.raises(NoKernelError) as caught:
            layers(size, Policy())
        parts = layers(size, Policy(allow_reference=True))
    why = "xpu_int4_product: sorts columns by group, and groups are of unequal size"
    assert why in caught.value.why
    assert {part.quant_method.selection.kernel.name for part in parts} == {"reference"}
    assert torch.equal(torch.cat([weight_of(part) for part in parts], 1), real)


def test_zero_points_beyond_int8_are_refused():
    weight = make_integers("uint4[1x32]:zero", [16], 64)
    weight.segments[0].zero.fill_(200)
    with pytest.raises(FormatError, match="zero points from 200 to 200"):
        layer_of("uint4[1x32]:zero", weight)


@pytest.mark.parametrize("shape", [(64,), (1, 7, 64), (2, 3, 5, 64), (2, 0, 64)])
def test_leading_dimensions_stay(shape):
    kernel, tensors = layer_of("int4[1x32]", make_integers("int4[1x32]", [24], 64))
    x = torch.ones(shape, dtype=torch.bfloat16)
    assert kernel.apply(tensors, x, None).shape == (*shape[:-1], 24)


def test_a_wrong_number_of_columns_is_named():
    kernel, tensors = layer_of("int4[1x32]", make_integers("int4[1x32]", [24], 64))
    with pytest.raises(FormatError, match=r"64 input features was given x of shape \(2, 32\)"):
        kernel.apply(tensors, torch.ones(2, 32, dtype=torch.bfloat16), None)


def test_every_dtype_of_the_prepared_scales_is_that_of_x():
    weight: CanonicalWeight = make_integers("int4[1x32]", [24], 64)
    for dtype in ("bfloat16", "float16"):
        _, tensors = layer_of("int4[1x32]", weight, dtype)
        assert tensors["group_scale"].dtype == getattr(torch, dtype)
