"""Weights in MX and NV checkpoints are those that the tools which wrote them say they are."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from quantdock.formats import parse_spec
from quantdock.numerics import dequantize, unpack_bytes, unpack_expert_blocks

MXFP4, MXFP8 = "fp4_e2m1[1x32]:e8m0:even", "fp8_e4m3[1x32]:e8m0:ceil"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
BF16, F32 = torch.bfloat16, torch.float32  # what the tool computes weights in
CHECKPOINTS = [
    ("ct-mxfp4", MXFP4, BF16),
    ("ct-mxfp4a16", MXFP4, BF16),
    ("ct-mxfp8", MXFP8, BF16),
    ("ct-nvfp4", NVFP4, BF16),
    ("ct-nvfp4a16", NVFP4, BF16),
    ("modelopt-nvfp4-w4a16", NVFP4, F32),
    ("quark-mxfp6-e2m3", "fp6_e2m3[1x32]:e8m0:even", F32),
    ("quark-mxfp6-e3m2", "fp6_e3m2[1x32]:e8m0:even", F32),
]
LAYERS = ("model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(("name", "text", "dtype"), CHECKPOINTS)
def test_weights_are_those_of_the_tool(shared, name, text, dtype):
    folder, spec = shared / "models" / name, parse_spec(text)
    stored, wanted = (load_file(folder / f"{n}.safetensors") for n in ("model", "golden"))
    bits = int(spec.element[2])
    for layer in LAYERS:
        tensors = {k.removeprefix(f"{layer}."): v for k, v in stored.items() if layer in k}
        codes = tensors.get("weight_packed", tensors.get("weight"))
        divisor = tensors.get("weight_global_scale")
        second = tensors.get("weight_scale_2") if divisor is None else 1 / divisor
        real = dequantize(
            codes if bits == 8 else unpack_bytes(codes, bits=bits),
            tensors["weight_scale"],
            spec,
            second_scale=second,
            dtype=dtype,
        )
        assert torch.equal(real.float(), wanted[f"dequant.{layer}.weight"])


def test_experts_of_gpt_oss_are_those_of_transformers(shared):
    folder, spec = shared / "models" / "gptoss-mxfp4-even", parse_spec(MXFP4)
    stored, wanted = (load_file(folder / f"{n}.safetensors") for n in ("model", "golden"))
    found = [n.removeprefix("dequant.") for n in wanted if n.startswith("dequant.")]
    for name in (name for name in found if f"{name}_blocks" in stored):
        codes, scale = unpack_expert_blocks(stored[f"{name}_blocks"], stored[f"{name}_scales"])
        experts = [dequantize(c, s, spec, dtype=BF16) for c, s in zip(codes, scale, strict=True)]
        assert torch.equal(torch.stack(experts).transpose(1, 2).float(), wanted[f"dequant.{name}"])
    assert any("experts" in name for name in found)
