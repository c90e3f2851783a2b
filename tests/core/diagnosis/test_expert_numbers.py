"""Doctor judges experts one by one: right ones pass, and damage names the expert."""

from __future__ import annotations

import shutil

import pytest
import torch

import quantdock
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from tests.toy_files import edit_tensors

BASE = "stories260k-mixtral-d128"


def numbers_of(folder, base=None):
    return quantdock.doctor(folder, base=base)["numbers"]


@pytest.fixture
def base(shared):
    return shared / "models" / "bases" / BASE


@pytest.mark.parametrize("name", ["fp8block-mixtral", "ct-mixtral-fp8-dynamic"])
def test_experts_of_other_tools_are_their_16_bit_weights(shared, base, name):
    """One tool kept Mixtral's names, the other wrote transformers'."""
    found = numbers_of(shared / "models" / name, base)
    assert found.status == "pass", found.findings
    layers = {layer["layer"]: layer for layer in found.details["layers"]}
    experts = [layer for name, layer in layers.items() if ".experts." in name]
    assert len(experts) == 5 * 4 * 2  # w13 and w2
    assert all(0 < layer["base_error"] < 0.05 for layer in experts)
    assert all(layer["error"] <= layer["tolerance"] for layer in experts)


def test_a_damaged_expert_is_named(shared, base, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(shared / "models" / "fp8block-mixtral", folder)
    name = "model.layers.2.block_sparse_moe.experts.3.w2"

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        codes = tensors[f"{name}.weight"].view(torch.uint8)
        codes[5] = codes[5].flip(0)

    edit_tensors(folder, damage)
    found = numbers_of(folder, base)
    assert found.status == "fail"
    fault = next(f for f in found.findings if f.level == "fail")
    assert fault.names == (name,) and "row 5" in fault.what


def test_experts_that_were_changed_at_load_are_judged_as_the_kernel_has_them(shared, monkeypatch):
    """Such as those to which a kernel gave one scale; nothing restores what the file had."""
    right = QuantizedExpertsMethod.process_weights_after_loading

    def change(self, layer):
        right(self, layer)
        self.value_steps = ("w1 and w3 have one scale",)

    monkeypatch.setattr(QuantizedExpertsMethod, "process_weights_after_loading", change)
    found = numbers_of(shared / "models" / "fp8block-mixtral")
    assert found.status == "pass", found.findings
    assert any(layer["layer"].endswith("experts") for layer in found.details["layers"])


def test_a_wrong_kernel_shows(shared, monkeypatch):
    right = ScaledLinear.apply
    monkeypatch.setattr(ScaledLinear, "apply", lambda self, *given: 1.1 * right(self, *given))
    found = numbers_of(shared / "models" / "fp8block-mixtral")
    assert found.status == "fail"
    names = {name for finding in found.findings for name in finding.names}
    assert "model.layers.0.mlp.experts" in names


def test_a_base_that_stacks_its_experts_is_no_fault(shared):
    models = shared / "models"
    found = numbers_of(models / "gptoss-mxfp4-even", models / "bases" / "gptoss-random")
    texts = " ".join(finding.what for finding in found.findings)
    assert "16 matrices of experts were not held against 16 bits" in texts
    assert found.status != "fail"
