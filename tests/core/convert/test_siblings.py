"""Layers that share a second scale in files: those that engines run as one."""

from __future__ import annotations

from safetensors.torch import load_file

from quantdock.convert.conversion import plan_conversion
from quantdock.convert.siblings import siblings
from quantdock.schemes import parse_scheme
from toy_llama import LAYER

NVFP4 = parse_scheme("fp4_e2m1[1x16]:e4m3:second[*x*]")
MXFP4 = parse_scheme("fp4_e2m1[1x32]:e8m0:even")


def test_only_quantized_layers_of_one_module_and_scheme_share():
    layers = {
        "a.experts.0.w1": NVFP4,
        "a.experts.0.w3": NVFP4,
        "a.experts.1.w1": NVFP4,
        "b.gate_proj": NVFP4,
        "b.up_proj": MXFP4,
        "c.q_proj": MXFP4,
        "c.k_proj": MXFP4,
    }
    pair = ("a.experts.0.w1", "a.experts.0.w3")
    assert siblings(layers) == dict.fromkeys(pair, pair)


def test_files_have_one_second_scale_for_queries_keys_and_values(plain, tmp_path):
    target = plan_conversion(plain, tmp_path / "out", "nvfp4").run().target
    tensors = load_file(target / "model.safetensors")
    levels = {
        name.removeprefix(f"{LAYER}.").removesuffix(".weight_global_scale"): tensor.item()
        for name, tensor in tensors.items()
        if name.endswith("global_scale")
    }
    attention = {levels[f"self_attn.{shard}_proj"] for shard in "qkv"}
    assert len(attention) == 1 and levels["mlp.gate_proj"] == levels["mlp.up_proj"]
    assert levels["mlp.gate_proj"] not in attention
