"""fbgemm_fp8: S11 a, and its bound."""

from __future__ import annotations

import pytest
import torch

from quantdock.configs.fbgemm_fp8 import FbgemmFp8Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, StoredTensor

UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")


def test_null_list_leaves_nothing_out() -> None:
    block = {"activation_scale_ub": 1200.0, "modules_to_not_convert": None}
    config = FbgemmFp8Config.from_config({"quant_method": "fbgemm_fp8", **block})
    assert str(config.scheme_for(UP).scheme) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    assert config.unmatched() == ()


@pytest.mark.parametrize(
    ("field", "expected"), [({}, 1200.0), ({"activation_scale_ub": 800}, 800.0)]
)
def test_bound_is_kept_and_told(field: dict[str, object], expected: float) -> None:
    config = FbgemmFp8Config.from_config(field)
    assert config.activation_scale_ub == expected
    assert config.notes() == (
        f"activations beyond activation_scale_ub = {expected:g} are kept, not clipped",
    )


def test_bound_must_be_above_zero() -> None:
    with pytest.raises(ConfigError, match=r"activation_scale_ub is -1.\n  allowed: a number above"):
        FbgemmFp8Config.from_config({"activation_scale_ub": -1})


@pytest.mark.parametrize("shape", [(128,), (128, 1)])
def test_stored_bound_is_consumed(shape: tuple[int, ...]) -> None:
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(128, 64)),
        "weight_scale": StoredTensor(dtype="float32", shape=shape),
        "input_scale_ub": StoredTensor(dtype="float32", shape=(1,)),
    }
    config = FbgemmFp8Config.from_config({})
    facts = LayerFacts(prefix="a", stored=stored)
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None
    slots = {slot.name: slot for slot in config.slots(scheme, 128, 64, facts)}
    assert set(slots) == {"weight", "weight_scale", "input_scale_ub"}
    assert slots["input_scale_ub"].default == 1200.0
    scale = 0.01 * torch.arange(1, 129)
    tensors = {
        "weight": torch.ones(128, 64).to(torch.float8_e4m3fn),
        "weight_scale": scale.reshape(shape),
        "input_scale_ub": torch.tensor([1200.0]),
    }
    weight = config.decode(scheme, [tensors], facts)
    assert torch.equal(weight.dequantize(), scale[:, None].expand(128, 64))
    assert weight.input_scale is None
