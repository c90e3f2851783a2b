"""Gradients of x and of the bias, of every operator of the core, against the dense layer's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from integer_weights import layer_of, make_integers
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.kernels.input_gradient import input_gradient
from quantdock.kernels.int4_pack import Int4Pack
from quantdock.kernels.int8_mm import Int8Mm
from quantdock.kernels.int8_pack import Int8Pack
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

N, K = 32, 64
KINDS = [
    (ScaledLinear, "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"),
    (ScaledLinear, "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
    (ScaledLinear, "uint4[1x32]:zero:act-order x int8[1x*]:zero:dynamic + input multiplier"),
    (Int4Pack, "int4[1x32]"),
    (Int4Pack, "uint4[1x32]:zero:act-order + input multiplier"),
    (Int8Mm, "int8[1x*] x int8[1x*]:dynamic"),
    (Int8Mm, "int8[1x*] x int8[*x*]"),
    (Int8Pack, "int8[1x*]"),
]
# Of the dense layer's gradient; the gradient of the result, and that of x, have x's dtype.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def made(kind, scheme):
    values = torch.randn(N, K, generator=torch.Generator().manual_seed(0))
    weight = sample_weight(values, parse_scheme(scheme))
    kernel, tensors = layer_of(scheme, weight, kind)
    return kernel, tensors, weight.dense()


def inputs(dtype, *shape, seed=1):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).requires_grad_()


def assert_near(result, expected, dtype):
    error = (result.float() - expected.float()).abs().amax()
    assert float(error) <= TOLERANCE[dtype] * float(expected.float().abs().amax())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("kind", "scheme"), KINDS)
def test_gradients_are_those_of_the_dequantized_layer(kind, scheme, dtype):
    kernel, tensors, dense = made(kind, scheme)
    x, bias = inputs(dtype, 2, 5, K), inputs(dtype, N, seed=2)
    result = kernel.apply(tensors, x, bias)
    with torch.no_grad():
        assert torch.equal(result, kernel.apply(tensors, x, bias))
    given = torch.randn(2, 5, N, generator=torch.Generator().manual_seed(3)).to(dtype)
    result.backward(given)
    plain, addend = (t.detach().float().requires_grad_() for t in (x, bias))
    F.linear(plain, dense, addend).backward(given.float())
    assert (x.grad.dtype, x.grad.shape) == (dtype, x.shape)
    assert_near(x.grad, plain.grad, dtype)
    assert_near(bias.grad, addend.grad, dtype)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("kind", "scheme"), KINDS[2:6])
def test_compiled_layers_have_the_same_gradients(kind, scheme, backend):
    kernel, tensors, _ = made(kind, scheme)
    given = torch.randn(3, N, generator=torch.Generator().manual_seed(3))
    results = []
    torch.compiler.reset()
    layer = lambda x: kernel.apply(tensors, x * 2, None) + 1  # noqa: E731
    for run in (layer, torch.compile(layer, backend=backend, fullgraph=True)):
        x = inputs(torch.float32, 3, K)
        run(x).backward(given)
        results.append(x.grad)
    assert torch.equal(*results)


@pytest.mark.parametrize(("kind", "scheme"), KINDS)
def test_inference_mode_computes_the_same(kind, scheme):
    kernel, tensors, _ = made(kind, scheme)
    x = inputs(torch.bfloat16, 3, K)
    with torch.inference_mode():
        inside = kernel.apply(tensors, x.detach(), None).clone()
    assert torch.equal(kernel.apply(tensors, x, None), inside)


def test_fused_shards_of_different_orders_and_an_empty_batch():
    scheme = "uint4[1x32]:zero:act-order"
    weight = make_integers(scheme, [16, 32], K, shared=False)
    kernel, tensors = layer_of(scheme, weight)
    for m in (0, 4):
        x = inputs(torch.float32, m, K)
        result = kernel.apply(tensors, x, None)
        result.backward(torch.ones_like(result))
        expected = torch.ones(m, 48) @ weight.dequantize()
        torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-4)


def test_half_precision_sums_in_f32():
    weight = make_integers("int8[1x*]", [4096], 32)
    gradient = torch.ones(1, 4096, dtype=torch.bfloat16)
    expected = weight.dequantize().double().sum(0).bfloat16()
    assert torch.equal(input_gradient(gradient, weight)[0], expected)


def test_weights_that_changed_before_the_backward_pass_are_an_error():
    kernel, tensors, _ = made(ScaledLinear, "int8[1x*]")
    result = kernel.apply(tensors, inputs(torch.float32, 3, K), None)
    tensors["weight_scale"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_experts_pass_gradients_to_x_and_to_the_routing_weights(dtype):
    scheme, experts, top = "int4[1x32]", 4, 2
    ups = [make_integers(scheme, [2 * N], K, seed=e) for e in range(experts)]
    downs = [make_integers(scheme, [K], N, seed=9 + e) for e in range(experts)]
    w13, w2 = layer_of(scheme, ups[0], Int4Pack)[0], layer_of(scheme, downs[0], Int4Pack)[0]

    def gate(hidden):
        first, second = (hidden * 0.05).chunk(2, dim=-1)
        return F.silu(first) * second

    loop = ExpertLoop(w13=w13, w2=w2, gate=gate, num_experts=experts)
    each = [loop.prepare(up, down) for up, down in zip(ups, downs, strict=True)]
    tensors = {name: torch.stack([own[name] for own in each]) for name in each[0]}
    ids = torch.tensor([[0, 1], [3, 1], [2, 0]])
    x, routing = inputs(dtype, 3, K), inputs(dtype, 3, top, seed=5)
    loop.apply(tensors, x, routing, ids).float().square().sum().backward()
    plain, weights = (t.detach().float().requires_grad_() for t in (x, routing))
    sums = [
        sum(
            weights[t, j] * gate(plain[t] @ ups[e].dequantize().T) @ downs[e].dequantize().T
            for j, e in enumerate(ids[t].tolist())
        )
        for t in range(3)
    ]
    torch.stack(sums).square().sum().backward()
    allowed = 4 * TOLERANCE[dtype]  # results of several roundings are squared
    for ours, theirs in ((x.grad, plain.grad), (routing.grad, weights.grad)):
        error = (ours.float() - theirs).abs().amax()
        assert float(error) <= allowed * float(theirs.abs().amax())
