"""Older and foreign spellings of a block."""

from __future__ import annotations

import pytest

from quantdock.checkpoint.block_dialects import flatten, infer_method


@pytest.mark.parametrize(
    ("block", "method"),
    [
        ({"quant_method": "FP8"}, "FP8"),
        ({"quant_method": "sparseml", "config_groups": {}}, "compressed-tensors"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"w_bit": 4, "q_group_size": 64}, "awq"),
        ({"producer": "modelopt"}, "modelopt"),
        ({"producer": {"name": "another"}}, ""),
        ({"quant_method": 8}, ""),
        ({"bits": 4, "group_size": 128}, ""),
    ],
)
def test_the_method_is_what_the_keys_give_away(block, method):
    assert infer_method(block) == method


def test_a_nested_block_is_lifted_and_outer_keys_stay():
    nested = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    assert flatten(nested) == {"producer": {"name": "modelopt"}, "quant_algo": "FP8"}
    assert flatten({"quantization": "word"}) == {"quantization": "word"}
