"""Tensors that only quantized checkpoints have."""

from __future__ import annotations

import pytest

from quantdock.checkpoint import read_header
from quantdock.checkpoint.quantization_tensors import is_quantization_tensor, refuse_without_block
from quantdock.errors import LoadError
from tests.sparse_files import write_tensors


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("x.weight_scale", "float32"),
        ("x.weight_scale_inv", "float32"),
        ("x.weight_scale_2", "float32"),
        ("x.input_scale", "bfloat16"),
        ("x.weight_zero_point", "int8"),
        ("x.weight_packed", "int32"),
        ("x.weight_global_scale", "float32"),
        ("x.qweight", "int32"),
        ("x.qzeros", "int32"),
        ("x.scales", "float16"),
        ("x.g_idx", "int32"),
        ("x.weight.absmax", "float32"),
        ("x.weight.quant_state.bitsandbytes__nf4", "uint8"),
        ("x.SCB", "float32"),
        ("x.pre_quant_scale", "bfloat16"),
        ("x.act_scales", "bfloat16"),
        ("experts.gate_up_proj_blocks", "uint8"),
        ("experts.gate_up_proj_scales", "uint8"),
        ("x.wq.qscale_weight", "float32"),
        ("self_attn.k_scale", "float32"),
        ("x.weight", "float8_e4m3fn"),
        ("layers.0.attn.wq_a.scale", "float8_e8m0fnu"),
    ],
)
def test_of_a_quantized_checkpoint(name, dtype):
    assert is_quantization_tensor(name, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "x.weight",
        "x.bias",
        "logit_scale",
        "gamma.layer_scale",
        "router.per_expert_scale",
        "x.sinks",
    ],
)
def test_of_any_checkpoint(name):
    assert not is_quantization_tensor(name, "bfloat16")


def test_quantization_tensors_without_a_block_are_named(tmp_path):
    tensors = {
        "x.weight": ("U8", (4, 8)),
        "x.weight_scale": ("F8_E4M3", (4, 1)),
        "x.weight_scale_2": ("F32", ()),
    }
    entries = read_header(write_tensors(tmp_path / "x.safetensors", tensors))
    with pytest.raises(LoadError) as caught:
        refuse_without_block(entries)
    text = str(caught.value)
    assert "has quantization tensors, but nothing says how it is quantized" in text
    assert "x.weight_scale (float8_e4m3fn [4, 1]), x.weight_scale_2 (float32 [])" in text
    assert "no quantization_config" in text


def test_a_plain_checkpoint_passes(tmp_path):
    entries = read_header(write_tensors(tmp_path / "x.safetensors", {"a.weight": ("BF16", (2, 2))}))
    assert refuse_without_block(entries) is None


def test_all_shared_files_are_told_apart(shared):
    for path in sorted((shared / "models").glob("*/model.safetensors")):
        found = [n for n, e in read_header(path).items() if is_quantization_tensor(n, e.dtype)]
        assert found, path
    for path in sorted((shared / "models" / "bases").glob("*/model.safetensors")):
        assert refuse_without_block(read_header(path)) is None
