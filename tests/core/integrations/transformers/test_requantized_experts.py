"""Files of fp8 layers with experts in fp4: as fp8 alone, decoded, and saved."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from tests.toy_fp4 import fp8_blocks, is_expert, is_linear, mxfp4, mxfp8, nvfp4, rewrite

torch.set_num_threads(1)

V4 = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}
M3 = {"quant_method": "minimax_m3_nvfp4"}


def load(folder, quantization=None):
    return quantdock.load(folder, quantization, device="cpu", dtype="float32")


@pytest.fixture
def write(shared, tmp_path):
    """Return a function that writes a Mixtral so: the folder, and a plain one of equal weights."""

    def make(block, linear, expert):
        folder = tmp_path / "in"
        shutil.copytree(shared / "models" / "bases" / "stories260k-mixtral-d128", folder)

        def storage(layer):
            return expert if is_expert(layer) else linear if is_linear(layer) else None

        return folder, rewrite(folder, block, storage)

    return make


def test_experts_in_mxfp4_become_blocks_without_a_change(write, tmp_path):
    folder, plain = write(V4, fp8_blocks, mxfp4)
    report = quantdock.convert_checkpoint(folder, tmp_path / "out", "fp8_per_block", exact=True)
    assert report.notes[-1] == "exact: all 2,457,600 values stay as they were"
    block = json.loads((report.target / "config.json").read_text())["quantization_config"]
    assert (block["quant_method"], block["weight_block_size"]) == ("fp8", [128, 128])
    for quantized in (folder, report.target):
        assert torch.equal(logits(load(quantized, "none")), logits(load(plain)))


@pytest.mark.parametrize(
    ("block", "linear", "expert", "method"),
    [(V4, fp8_blocks, mxfp4, "compressed-tensors"), (M3, mxfp8, nvfp4, "modelopt")],
)
def test_they_are_decoded_and_saved(write, tmp_path, block, linear, expert, method):
    folder, plain = write(block, linear, expert)
    decoded = quantdock.convert_checkpoint(folder, tmp_path / "decoded", "none").target
    expected = load_file(plain / "model.safetensors")
    for name, tensor in load_file(decoded / "model.safetensors").items():
        assert torch.equal(tensor, expected[name].to(tensor.dtype)), name
    model = load(folder)
    model.save_pretrained(tmp_path / "saved")
    said = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert said["quant_method"] == method
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))
