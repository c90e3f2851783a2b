"""What AWQ files say of themselves, and what stands in their words."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import plain_decoding
from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import Integers
from quantdock.convert.rounding import round_weight
from quantdock.formats import parse_spec
from toy_llama import LINEARS, UP, llama


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [128, 32])
def test_words_hold_what_was_rounded(plain, tmp_path, group, symmetric):
    options = Integers(group_size=group, symmetric=symmetric)
    folder = (
        plan_conversion(plain, tmp_path / "out", "awq", integers=options, ignore=["*.up_proj"])
        .run()
        .target
    )
    tensors = load_file(folder / "model.safetensors")
    spec = parse_spec(f"int4[1x{group}]" if symmetric else f"uint4[1x{group}]:zero")
    for prefix in set(LINEARS) - {UP}:
        stored = {name: tensors[f"{prefix}.{name}"] for name in ("qweight", "qzeros", "scales")}
        expected = round_weight(llama()[f"{prefix}.weight"], spec, "float16").dequantize()
        assert torch.equal(plain_decoding.awq(stored, group), expected)
        assert stored["scales"].dtype == torch.float16
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert {**block, "modules_to_not_convert": sorted(block["modules_to_not_convert"])} == {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "modules_to_not_convert": ["lm_head", UP],
    }
