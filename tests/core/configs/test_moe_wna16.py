"""moe_wna16: GPTQ and AWQ files by another name."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.moe_wna16 import MoeWna16Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
UP = LayerFacts(prefix="model.layers.0.mlp.experts.3.up_proj", kind="experts")
Q = LayerFacts(prefix="model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (GPTQ, "int4[1x32]"),
        (AWQ, "uint4[1x64]:zero"),
        ({**GPTQ, "quant_method": "moe_wna16", "linear_quant_method": "gptq"}, "int4[1x32]"),
    ],
)
def test_experts_and_linear_layers_are_read_as_the_file_says(block: Any, expected: str) -> None:
    config = MoeWna16Config.from_config(block)
    assert [str(config.scheme_for(facts).scheme) for facts in (UP, Q)] == [expected] * 2
    slots = config.slots(config.scheme_for(UP).scheme, 64, 128, UP)
    assert {"qweight", "scales"} <= {slot.name for slot in slots}


def test_lists_of_the_file_count() -> None:
    config = MoeWna16Config.from_config({**AWQ, "modules_to_not_convert": ["self_attn", "visual"]})
    assert config.scheme_for(Q).kind == "unquantized"
    assert config.unmatched() == ("modules_to_not_convert[1] = 'visual'",)


def test_other_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="moe_wna16: quant_method is 'fp8'") as caught:
        MoeWna16Config.from_config({"quant_method": "fp8"})
    assert "allowed: 'gptq', 'awq'" in str(caught.value)
