"""Check 6 reads experts that are stored in one tensor, each by itself."""

from __future__ import annotations

import shutil

import pytest

import quantdock
from examined import told
from toy_files import edit_tensors

STACK = "model.layers.1.mlp.experts"


@pytest.mark.parametrize(
    ("tensor", "where", "exponent", "expected"),
    [
        ("down_proj_scales", (2, 0, 0), 252, f"{STACK}.2.down_proj has scales from "),
        ("gate_up_proj_scales", (3, 5, 1), 254, f"{STACK}.3.gate_up_proj has "),
    ],
)
def test_an_absurd_exponent_names_its_expert(shared, tmp_path, tensor, where, exponent, expected):
    folder = shutil.copytree(shared / "models" / "gptoss-mxfp4-even", tmp_path / "toy")
    whole = quantdock.doctor(folder, platform="cpu")
    assert whole["scales"].status == "pass"
    assert whole["scales"].details["num_unread"] == 0

    def damage(tensors):
        tensors[f"{STACK}.{tensor}"][where] = exponent

    edit_tensors(folder, damage)
    assert told(quantdock.doctor(folder, platform="cpu"), "scales").startswith(expected)
