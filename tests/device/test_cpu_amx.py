"""On a CPU with AMX: what the probe says, what the plan says, and that it runs."""

from __future__ import annotations

import pytest
import torch

import quantdock
from demo.models import TINY_LLAMA
from quantdock.errors import NoKernelError

pytestmark = pytest.mark.device
IDS = torch.arange(3, 60)[None]


def test_the_probe_reads_the_real_processor(cpu_amx):
    assert cpu_amx.arch == "amx"
    assert {"amx_tile", "amx_int8", "avx512f"} <= cpu_amx.features
    assert str(quantdock.get_platform("cpu_amx")) == "cpu_amx:amx"


def test_fp8_keeps_its_activations_and_the_plan_says_so(cpu_amx):
    model = quantdock.load(TINY_LLAMA, quantization="fp8_per_block", device="cpu")
    plan = model.quantdock_plan
    swaps = {layer.substitution.target for layer in plan.layers if layer.substitution}
    assert plan.platform == "cpu_amx:amx"
    assert swaps == {"fp8_e4m3[128x128]"}
    with torch.no_grad():
        assert model(input_ids=IDS).logits.isfinite().all()


def test_exact_runs_what_was_asked(cpu_amx):
    model = quantdock.load(TINY_LLAMA, quantization="fp8_per_block", device="cpu", exact=True)
    assert not any(layer.substitution for layer in model.quantdock_plan.layers)


def test_a_name_outside_the_closed_set_steps_down(cpu_amx):
    model = quantdock.load(TINY_LLAMA, quantization="mxfp8", device="cpu")
    assert model.quantdock_plan.platform == "cpu:amx"
    assert any("stepped down" in note for note in model.quantdock_plan.notes)


def test_a_kernel_that_is_not_there_is_an_error(cpu_amx):
    with pytest.raises(NoKernelError, match="no_kernel"):
        quantdock.load(TINY_LLAMA, quantization="fp8", device="cpu", require="no_kernel")


def test_int8_runs_in_torchs_integer_product_and_agrees_with_the_reference(cpu_amx):
    """Both sum the same integers exactly; tolerance: activations' last bits move codes."""
    fast = quantdock.load(TINY_LLAMA, quantization="w8a8_int8", device="cpu")
    slow = quantdock.load(TINY_LLAMA, quantization="w8a8_int8", device="cpu", require="reference")
    kernels = {layer.kernel for layer in fast.quantdock_plan.layers if layer.scheme}
    assert kernels == {"int8_mm"}
    with torch.no_grad():
        found, expected = (model(input_ids=IDS).logits.float() for model in (fast, slow))
    assert float((found - expected).norm()) <= 0.02 * float(expected.norm())
