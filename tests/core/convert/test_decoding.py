"""--to none: the weights that a quantized checkpoint stands for, and nothing of how it was."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from quantdock.convert.conversion import plan_conversion
from quantdock.convert.decoding import without_block
from quantdock.errors import ConfigError, LoadError, MethodNotYetError
from quantdock.formats import parse_spec
from quantdock.numerics import dequantize
from toy_llama import (
    BLOCK,
    LAYER,
    LINEARS,
    STATIC,
    TENSOR,
    UP,
    llama,
    with_input_scales,
    write,
    write_json,
)


def decode(folder, target):
    return plan_conversion(folder, target, "none").run()


@pytest.mark.parametrize(("block", "tile"), [(BLOCK, "128x128"), (TENSOR, "*x*"), (TENSOR, "1x*")])
def test_every_layer_becomes_its_real_weight(tmp_path, block, tile):
    tensors = llama(tile)
    report = decode(write(tmp_path / "in", tensors, block), tmp_path / "out")
    decoded = load_file(report.target / "model.safetensors")
    assert decoded.keys() == llama().keys()
    spec = parse_spec(f"fp8_e4m3[{tile}]")
    for name, tensor in decoded.items():
        prefix = name.removesuffix(".weight")
        expected = tensors[name]
        if prefix in LINEARS:
            scale = next(t for n, t in tensors.items() if n.startswith(f"{prefix}.weight_scale"))
            expected = dequantize(expected, scale, spec, dtype=torch.bfloat16)
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, expected), name
    assert "quantization_config" not in json.loads((report.target / "config.json").read_text())
    assert (report.num_layers, report.notes[-1]) == (7, "decoded from fp8 to bfloat16")


def test_static_input_scales_and_side_files_of_the_quantizer_are_left_out(tmp_path):
    folder = write(tmp_path / "in", with_input_scales(llama("*x*")), STATIC)
    write_json(folder / "quantization_config.json", STATIC)
    target = decode(folder, tmp_path / "out").target
    assert load_file(target / "model.safetensors").keys() == llama().keys()
    assert [path.name for path in sorted(target.iterdir())] == ["config.json", "model.safetensors"]


def test_the_models_own_dtype_is_taken(tmp_path):
    folder = write(tmp_path / "in", llama("128x128"), BLOCK, dtype="float32")
    target = decode(folder, tmp_path / "out").target
    assert load_file(target / "model.safetensors")[f"{UP}.weight"].dtype == torch.float32


def test_scales_of_the_kv_cache_are_left_out_and_told(tmp_path):
    name = f"{LAYER}.self_attn.k_proj.k_scale"
    folder = write(tmp_path / "in", {**llama("*x*"), name: torch.tensor(0.5)}, TENSOR)
    report = decode(folder, tmp_path / "out")
    assert name not in load_file(report.target / "model.safetensors")
    assert f"scales of the KV cache are left out: {name}" in report.notes


def test_experts_are_decoded_too(tmp_path):
    tensors = llama("128x128")
    for part in ("weight", "weight_scale_inv"):
        tensors[f"{LAYER}.mlp.experts.0.up_proj.{part}"] = tensors[f"{UP}.{part}"].clone()
    target = decode(write(tmp_path / "in", tensors, BLOCK), tmp_path / "out").target
    decoded = load_file(target / "model.safetensors")
    assert torch.equal(decoded[f"{LAYER}.mlp.experts.0.up_proj.weight"], decoded[f"{UP}.weight"])


def test_what_was_not_decoded_is_never_copied(tmp_path):
    name = f"{UP}.weight_zero_point"
    folder = write(tmp_path / "in", {**llama("*x*"), name: torch.zeros(1)}, TENSOR)
    with pytest.raises(LoadError, match=rf"were not used\.\s+{name}"):
        decode(folder, tmp_path / "out")


@pytest.mark.parametrize(("rows", "scales"), [(128, 1), (200, 2)])
def test_stacked_experts_are_decoded_in_one_tensor(tmp_path, rows, scales):
    name = f"{LAYER}.mlp.experts.gate_up_proj"
    codes = torch.randn(2, rows, 128).to(torch.float8_e4m3fn)
    scale = torch.arange(1.0, 2 * scales + 1).view(2, scales, 1)
    tensors = {**llama("128x128"), name: codes, f"{name}_scale_inv": scale}
    report = decode(write(tmp_path / "in", tensors, BLOCK), tmp_path / "out")
    decoded = load_file(report.target / "model.safetensors")
    assert f"{name}_scale_inv" not in decoded and report.num_layers == 8
    each = scale.repeat_interleave(rows // scales, 1)  # gate has a row of scales, and up one
    assert torch.equal(decoded[name], (codes.float() * each).bfloat16())


def test_other_tensors_of_codes_are_refused_by_name(tmp_path):
    name = f"{LAYER}.mlp.experts.gate_up_proj"
    tensors = {
        **llama("128x128"),
        name: torch.zeros(2, 2, 128, 128, dtype=torch.float8_e4m3fn),
        f"{name}_scale_inv": torch.ones(2, 2, 1, 1),
    }
    with pytest.raises(ConfigError, match=rf"{name} cannot be converted: .*\[2, 2, 128, 128\]"):
        decode(write(tmp_path / "in", tensors, BLOCK), tmp_path / "out")


def test_methods_to_come_say_so(tmp_path):
    folder = write(tmp_path / "in", llama(), {"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(MethodNotYetError, match="bitsandbytes is known and not supported yet"):
        decode(folder, tmp_path / "out")


def test_the_block_is_taken_out_wherever_it_stands():
    config = {"a": 1, "quantization_config": {}, "text_config": {"b": 2, "quantization_config": {}}}
    assert without_block({**config, "compression_config": {}}) == {"a": 1, "text_config": {"b": 2}}
