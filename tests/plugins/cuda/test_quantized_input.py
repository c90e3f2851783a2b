"""Quantized inputs of the CUDA plugin, as far as a machine without a GPU can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.functional import InputFormat, quantize_input, silu_mul_quantize
from quantdock.kernel import Problem, select_kernel
from quantdock.kernels.descriptors import kernels_for
from quantdock.numerics import quantize_weight
from quantdock.problem import INPUT
from quantdock.schemes import parse_scheme
from quantdock_cuda.archs import describe
from quantdock_cuda.input_kernels import INPUT_KERNELS
from quantdock_cuda.linear_of_codes import as_written
from quantdock_cuda.quantized_input import CUDA_QUANTIZE_INPUT, CUDA_RMS_NORM_INPUT, CudaInput
from quantdock_cuda.scaled_linear import CudaScaledLinear

SCHEMES = (
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "int8[1x*] x int8[1x*]:dynamic",
)


@pytest.mark.parametrize("text", SCHEMES)
def test_an_offloaded_layer_takes_codes(text):
    problem = Problem(scheme=parse_scheme(text), n=48, k=256, shards=(48,))
    kernel = CudaScaledLinear(problem)
    weight = quantize_weight(torch.randn(48, 256), problem.scheme.weight)
    if problem.scheme.is_static:
        weight = replace(weight, input_scale=torch.tensor([0.02]))
    tensors = kernel.prepare(weight)
    scale, spec = tensors.get("input_scale"), problem.scheme.activation
    to = InputFormat(spec=spec, k=256, scale=scale, kernel=CudaInput(problem))
    x, bias = torch.randn(3, 2, 256), torch.randn(48)
    found = kernel.apply_quantized(tensors, quantize_input(x, to), bias)
    assert torch.equal(found, kernel.apply(tensors, x, bias))
    assert silu_mul_quantize(torch.randn(0, 512), to).codes.shape == (0, 256)


@pytest.mark.parametrize(
    "text, arch, name",
    [
        (SCHEMES[0], "sm_90", "cuda_fp8_input"),
        (SCHEMES[2], "sm_80", "cuda_int8_input"),
        (SCHEMES[0], "sm_80", "plain_input"),
    ],
)
def test_which_kernel_makes_inputs(text, arch, name):
    platform = describe(arch)
    problem = Problem(scheme=parse_scheme(text), n=48, k=256, kind=INPUT)
    kernels = (*INPUT_KERNELS, *kernels_for(platform))
    assert select_kernel(problem, platform, kernels).kernel.name == name


def test_codes_of_any_layout_are_laid_out_as_products_read_them():
    codes, scale = torch.arange(15, dtype=torch.int8).view(5, 3), torch.rand(5, 2)
    laid, scales = as_written(codes, scale)
    assert laid.shape == (8, 3) and torch.equal(laid[:5], codes)
    assert scales.stride() == (1, 8) and torch.equal(scales[:5], scale)
    again = as_written(laid, scales)
    assert again[0].data_ptr() == laid.data_ptr() and again[1].data_ptr() == scales.data_ptr()
    assert as_written(codes, torch.tensor(0.5))[1].shape == (1, 1)


def test_recorded_calls_know_their_shapes():
    x, weight = torch.empty(3, 2, 512, device="meta"), torch.empty(256, device="meta")
    codes, scale = CUDA_QUANTIZE_INPUT(x, None, "fp8_e4m3[1x128]:dynamic", True)
    assert codes.shape == (8, 256) and codes.dtype == torch.float8_e4m3fn
    assert scale.shape == (8, 2) and scale.stride() == (1, 8)
    rows = x[..., :256]
    codes, scale, total = CUDA_RMS_NORM_INPUT(rows, weight, 1e-6, None, rows, "int8[*x*]:dynamic")
    assert codes.shape == (8, 256) and scale.shape == (1, 1) and total.shape == rows.shape
