"""awq and gptq on XPU: the plan of a described GPU, whole, and values against other tools'."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from packed_layers import decode
from quantdock import explain, get_quantization_config
from quantdock.kernel import Problem
from quantdock.kernels.layout import to_grid
from quantdock.schemes import Scheme
from quantdock.testing import use_plugins
from quantdock_xpu.configs import AwqXpuConfig, GptqXpuConfig
from quantdock_xpu.int4_product import Int4Product

LAYER = "model.layers.0.self_attn.q_proj"
AS_STORED = "XPU's int4 product takes its columns as stored"
SORTED = "XPU's int4 product takes its columns sorted by group, x follows at each call"


@pytest.fixture(autouse=True)
def only_this_plugin():
    with use_plugins("quantdock_xpu.plugin"):
        yield


def test_the_names_mean_this_on_xpu_only():
    assert get_quantization_config("gptq", "xpu:bmg") is GptqXpuConfig
    assert get_quantization_config("awq", "xpu:pvc") is AwqXpuConfig
    assert get_quantization_config("gptq", "cpu:avx2").__module__ == "quantdock.configs.gptq"
    assert get_quantization_config("fp8", "xpu:bmg").__module__ == "quantdock.configs.fp8"


@pytest.mark.parametrize(
    ("model", "scheme", "reason"),
    [
        ("gptq-w4-g64-desc", "int4[1x64]:act-order", SORTED),
        ("gptq-w4-g32-asym-v2", "uint4[1x32]:zero", AS_STORED),
        ("awq-w4-g32", "uint4[1x32]:zero", AS_STORED),
    ],
)
def test_the_plan_of_a_described_gpu(shared, model, scheme, reason):
    plan = explain(shared / "models" / model, platform="xpu:bmg")
    layers = [layer for layer in plan.layers if layer.decision == "quantized"]
    assert plan.platform == "xpu:bmg" and plan.level == 2
    assert len(layers) == 35
    assert {layer.kernel for layer in layers} == {"xpu_int4_product"}
    assert {layer.scheme for layer in layers} == {scheme}
    assert {layer.because for layer in layers} == {f"the file stores it as qweight; {reason}"}
    assert {layer.substitution for layer in layers} == {None}
    assert {(r.kernel, r.reasons) for layer in layers for r in layer.rejected} == {
        ("reference", ("can run it; xpu_int4_product comes first",))
    }
    assert all("rounded to x's dtype" in layer.kernel_note for layer in layers)
    assert not plan.warnings


def test_other_widths_keep_the_cores_meaning_and_have_no_kernel(shared):
    plan = explain(shared / "models" / "gptq-w8-g128", platform="xpu:bmg")
    layers = [layer for layer in plan.layers if layer.decision == "quantized"]
    assert {layer.kernel for layer in layers} == {None}
    assert {layer.because for layer in layers} == {"the file stores it as qweight"}
    reasons = {r.kernel: r.reasons for r in layers[0].rejected}
    assert reasons["xpu_int4_product"] == ("weight element is int8, it takes int4, uint4",)
    assert "QUANTDOCK_KERNEL=reference" in layers[0].kernel_note


# The tools rounded what they decoded to 16 bits: gptq's to bfloat16, once or twice.
@pytest.mark.parametrize(
    ("model", "step"),
    [
        ("gptq-w4-g64-desc", 2.0**-7),
        ("gptq-w4-g32-asym-v2", 2.0**-7),
        ("awq-w4-g32", 2.0**-11),
    ],
)
def test_what_the_operator_gets_decodes_to_the_values_of_the_tool(shared, model, step):
    folder = shared / "models" / model
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = get_quantization_config(block["quant_method"], "xpu:bmg").from_config(block)
    with safe_open(folder / "golden.safetensors", "pt") as file:
        name = next(n for n in file.keys() if n.startswith("dequant."))  # noqa: SIM118
        expected = file.get_tensor(name)
    prefix = name.removeprefix("dequant.").removesuffix(".weight")
    tensors = {
        key.removeprefix(f"{prefix}."): tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
        if key.startswith(f"{prefix}.")
    }
    weight = decode(config, tensors)
    n, k = weight.shape
    spec = weight.segments[0].spec
    kernel = Int4Product(Problem(scheme=Scheme(weight=spec), n=n, k=k, dtype="float16"))
    made = kernel.prepare(weight)
    codes = torch.stack([(made["weight_words"] >> 4 * i) & 15 for i in range(8)], 2).view(n, k)
    group = k // made["group_scale"].shape[0]
    scale, zero = (
        made[f"group_{part}"].float().T.repeat_interleave(group, dim=1)
        for part in ("scale", "zero")
    )
    values = scale * (codes - zero)
    if "weight_order" in made:
        values = values[:, made["weight_order"][0].argsort()]
    assert torch.allclose(values, expected, rtol=step, atol=0)
    assert to_grid(weight, spec).codes.shape == (n, k // 2)
