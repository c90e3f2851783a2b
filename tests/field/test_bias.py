"""Biases of the field: S46, S47 - added once, by one owner, whatever the shape of the weight."""

from __future__ import annotations

import pytest
import torch

from quantdock import dispatch_for
from quantdock.kernel import Problem
from quantdock.schemes import parse_scheme
from toy_llama import BLOCK, LINEARS, TENSOR, Q, codes, llama, load, make_layer, plans, run, write

METHODS = ["fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"]


def with_biases(tile=None):
    """Return a model whose attention has zero weights and biases of 100."""
    tensors = llama(tile)
    for name in LINEARS[:4]:
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = torch.zeros(weight.shape).to(weight.dtype)
        tensors[f"{name}.bias"] = torch.full(weight.shape[:1], 100.0, dtype=torch.bfloat16)
    return tensors


def check(model):
    for m in (1, 33):
        x = torch.randn(m, 256, dtype=model.dtype)
        for name in LINEARS[:3]:
            y = run(model, name, x)
            assert y.unique().tolist() == [100.0]
            assert plans(model)[name].decision == "quantized"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("method", METHODS)
def test_s46_a_bias_is_added_once(tmp_path, method, dtype):
    folder = write(tmp_path, with_biases(), attention_bias=True)
    check(load(folder, method, dtype=dtype))


@pytest.mark.parametrize(("block", "tile"), [(TENSOR, "*x*"), (TENSOR, "1x*"), (BLOCK, "128x128")])
def test_s46_a_bias_beside_serialized_codes_is_added_once(tmp_path, block, tile):
    check(load(write(tmp_path, with_biases(tile), block, attention_bias=True)))


def test_s46_every_kernel_that_can_run_it_adds_it_once(tmp_path):
    """Each kernel of this machine in turn, by its name."""
    scheme = parse_scheme("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic")
    dispatch = dispatch_for("cpu")
    problem = Problem(scheme=scheme, n=256, k=256, has_bias=True)
    able = [k.name for k in dispatch.kernels if not k.why_not(problem, dispatch.platform)]
    assert able
    folder = write(tmp_path, with_biases(), attention_bias=True)
    for kernel in able:
        model = load(folder, "fp8_per_channel", require=kernel)
        assert plans(model)[Q].kernel == kernel
        check(model)


@pytest.mark.parametrize("parts", [[96], [64, 32]])
def test_s47_a_bias_of_a_ragged_layer_keeps_its_places(parts):
    """96 rows in blocks of 128: each output has its own bias, and none is lost to padding."""
    bias = torch.arange(96.0)
    stored = [{"weight": codes(n, 200), "weight_scale_inv": torch.full((1, 2), 0.5)} for n in parts]
    layer = make_layer(BLOCK, 200, stored, bias=bias)
    assert layer(torch.ones(2, 200)).tolist() == [(100.0 + bias).tolist()] * 2


def test_s47_partial_products_leave_the_bias_to_their_caller():
    """Two ranks that cut K: the bias belongs to one of them, and the sum has it once."""
    stored = {"weight": codes(16, 128), "weight_scale": torch.tensor(0.5)}
    whole = {"weight": codes(16, 256), "weight_scale": torch.tensor(0.5)}
    bias = torch.arange(16.0)
    x = torch.ones(3, 256)
    first, second = make_layer(TENSOR, 128, [stored], bias=bias), make_layer(TENSOR, 128, [stored])
    expected = make_layer(TENSOR, 256, [whole], bias=bias)(x)
    assert torch.equal(first(x[:, :128]) + second(x[:, 128:]), expected)
