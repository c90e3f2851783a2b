"""Inputs that are quantized before their layer: the same results, and errors for any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from quantdock import dispatch_for, get_quantization_config
from quantdock.errors import FormatError
from quantdock.functional import quantize_input, rms_norm_quantize, silu_mul_quantize
from quantdock.kernels.int8_mm import Int8Mm
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.layers import (
    LinearBase,
    MergedStore,
    MergedView,
    ParallelGroup,
    ReplicatedLinear,
    RowParallelLinear,
)
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.numerics import quantize_weight
from quantdock.problem import Problem
from quantdock.schemes import LayerFacts, parse_scheme

K, N = 256, 48
METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
DTYPES = (torch.float32, torch.bfloat16)
SCHEMES = (
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:e8m0:ceil:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "int8[*x*] x int8[*x*]",
    "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic",
)


def layer_of(method, dtype=torch.float32, kind=LinearBase, **options):
    config = get_quantization_config(method, "cpu").online().bind(dispatch_for("cpu"))
    layer = kind(
        K, N, False, quant_config=config, prefix="down_proj", params_dtype=dtype, **options
    )
    layer.quant_method.pending.add("weight", torch.randn(N, K))
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def normed(x, weight, eps):
    """Return the norm as models compute it."""
    values = x.float()
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    return weight * values.to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_results_are_those_of_the_functions_apart(method, dtype):
    layer = layer_of(method, dtype)
    to = layer.input_format
    assert to.spec == layer.quant_method.selection.scheme.activation
    x = torch.randn(3, 5, 2 * K, dtype=dtype)
    gate, up = x.chunk(2, dim=-1)
    assert torch.equal(layer(silu_mul_quantize(x, to)), layer(F.silu(gate) * up))
    assert torch.equal(layer(quantize_input(gate, to)), layer(gate))
    weight, residual = torch.randn(K, dtype=dtype), torch.randn(3, 5, K, dtype=dtype)
    made, total = rms_norm_quantize(gate, weight, 1e-6, to, residual)
    assert torch.equal(total, gate + residual)
    assert torch.equal(layer(made), layer(normed(total, weight, 1e-6)))
    alone, same = rms_norm_quantize(gate, weight, 1e-6, to)
    assert same is gate and torch.equal(layer(alone), layer(normed(gate, weight, 1e-6)))


def test_the_sum_with_a_residual_has_the_dtype_of_x():
    layer = layer_of(METHODS[0], torch.bfloat16)
    x, residual = torch.randn(5, K, dtype=torch.bfloat16), torch.randn(5, K)
    weight = torch.randn(K, dtype=torch.bfloat16)
    made, total = rms_norm_quantize(x, weight, 1e-6, layer.input_format, residual)
    assert torch.equal(total, (x + residual).to(torch.bfloat16))
    assert torch.equal(layer(made), layer(normed(total, weight, 1e-6)))


@pytest.mark.parametrize("m", [0, 1, 7])
@pytest.mark.parametrize("text", SCHEMES)
def test_kernels_take_the_codes_of_every_scheme(text, m):
    scheme = parse_scheme(text)
    weight = quantize_weight(torch.randn(N, K), scheme.weight)
    if scheme.is_static:
        weight = replace(weight, input_scale=torch.tensor([0.01, 0.02]))
    from quantdock.functional import InputFormat
    from quantdock.kernels.plain_input import PlainInput

    problem = Problem(scheme=scheme, n=N, k=K)
    x = torch.randn(m, K)
    for kernel in (ScaledLinear(problem), *([Int8Mm(problem)] if "int8" in text else [])):
        tensors = kernel.prepare(weight)
        to = InputFormat(
            spec=scheme.activation,
            k=K,
            scale=tensors.get("input_scale"),
            kernel=PlainInput(problem),
        )
        found = kernel.apply_quantized(tensors, quantize_input(x, to), torch.ones(N))
        assert torch.equal(found, kernel.apply(tensors, x, torch.ones(N)))


def test_layers_of_one_store_share_the_codes():
    config = get_quantization_config("fp8_per_channel", "cpu").online().bind(dispatch_for("cpu"))
    facts = LayerFacts(prefix="qkv_proj", shards=("q_proj", "k_proj"))
    options = {"params_dtype": torch.float32, "quant_config": config, "facts": facts}
    store = MergedStore(K, [N, 16], False, **options)
    for index, n in enumerate((N, 16)):
        store.quant_method.pending.add("weight", torch.randn(n, K), index)
    store.quant_method.process_weights_after_loading(store)
    views = [MergedView(store, i, LayerFacts(prefix=name)) for i, name in enumerate("qk")]
    x = torch.randn(4, K)
    made = quantize_input(x, views[0].input_format)
    for view in views:
        assert torch.equal(view(made), view(x))


def test_ranks_sum_in_f32():
    group = ParallelGroup(rank=1, size=2)
    layer = layer_of("fp8_per_channel", torch.bfloat16, RowParallelLinear, group=group)
    assert layer.in_features == K // 2
    x = torch.randn(3, K // 2, dtype=torch.bfloat16)
    found = layer(quantize_input(x, layer.input_format))
    assert found.dtype == torch.float32 and torch.equal(found, layer(x))


def test_a_layer_that_takes_its_part_of_x_takes_no_codes():
    group = ParallelGroup(rank=1, size=2)
    options = {"group": group, "input_is_parallel": False}
    layer = layer_of("fp8_per_channel", torch.float32, RowParallelLinear, **options)
    made = quantize_input(torch.randn(3, K), layer_of("fp8_per_channel").input_format)
    assert layer.input_format is None
    with pytest.raises(FormatError, match=r"divides its input \(down_proj\) was given x as fp8"):
        layer(made)


def test_what_was_quantized_for_another_layer_is_refused():
    made = quantize_input(torch.randn(2, K), layer_of("fp8_per_block").input_format)
    text = r"given x as fp8_e4m3\[1x128\]:dynamic codes of shape \(2, 256\)"
    with pytest.raises(FormatError, match=text + r".*\n  it takes fp8_e4m3\[1x\*\]:dynamic codes"):
        layer_of("fp8_per_channel")(made)
    plain = ReplicatedLinear(K, N, bias=False)
    assert plain.input_format is None
    with pytest.raises(FormatError, match=r"unquantized layer \[48, 256\] was given.*\n.*x itself"):
        plain(made)


def test_layers_whose_x_stays_in_16_bits_have_no_format():
    layer = layer_of("int8_per_channel_weight_only", torch.bfloat16)
    assert isinstance(layer.quant_method, QuantizedLinearMethod) and layer.input_format is None


def test_wrong_shapes_and_gradients_are_errors():
    to = layer_of("fp8_per_channel").input_format
    with pytest.raises(FormatError, match="it takes 512 columns"):
        silu_mul_quantize(torch.ones(2, K), to)
    with pytest.raises(FormatError, match=r"was given weight \(3,\)"):
        rms_norm_quantize(torch.ones(2, K), torch.ones(3), 1e-6, to)
    with pytest.raises(FormatError, match="codes have none"):
        quantize_input(torch.ones(2, K, requires_grad=True), to)
    with torch.no_grad():
        quantize_input(torch.ones(2, K, requires_grad=True), to)


def test_recorded_calls_are_whole():
    layer = layer_of("fp8_per_block")
    to, x = layer.input_format, torch.randn(4, 2 * K)
    run = torch.compile(lambda x: layer(silu_mul_quantize(x, to)), fullgraph=True, backend="eager")
    assert torch.equal(run(x), layer(silu_mul_quantize(x, to)))


def test_the_platform_is_asked_for_the_kernel():
    """What users require of layers' kernels does not count for inputs."""
    from quantdock import Policy

    dispatch = dispatch_for("cpu", Policy(require="reference"))
    config = get_quantization_config("fp8_per_channel", "cpu").online().bind(dispatch)
    layer = LinearBase(K, N, False, quant_config=config, prefix="x", params_dtype=torch.float32)
    layer.quant_method.pending.add("weight", torch.randn(N, K))
    layer.quant_method.process_weights_after_loading(layer)
    assert type(layer.input_format.kernel).__name__ == "PlainInput"
    assert "plain_input" not in {r.kernel for r in layer.quant_method.selection.rejected}
