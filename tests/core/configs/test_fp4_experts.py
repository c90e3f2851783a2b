"""fp8 files whose experts are in fp4: what reads which layer, and who takes a file over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdock.configs.fp4_experts import DeepseekV4Fp8Config, MinimaxM3Nvfp4Config
from quantdock.numerics import pack_bytes, quantize_weight
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, StoredTensor
from third_party import decode, headers

V4 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
M3 = {"quant_method": "mxfp8", "modules_to_not_convert": ["lm_head"]}
BLOCK = "fp8_e4m3[128x128]:ceil x fp8_e4m3[1x128]:ceil:dynamic"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
W4A4 = f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
MXFP8 = "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic"
EXPERT = "layers.3.ffn.experts.0.w1"


def scheme(config: Any, prefix: str, kind: Any = "linear", **stored: StoredTensor) -> str:
    return str(
        config.scheme_for(LayerFacts(prefix=prefix, kind=kind, stored=stored or None)).scheme
    )


def test_experts_are_told_from_other_layers() -> None:
    v4, m3 = DeepseekV4Fp8Config.from_config(V4), MinimaxM3Nvfp4Config.from_config(M3)
    assert scheme(v4, "layers.0.attn.wq_a") == BLOCK
    assert scheme(v4, EXPERT, "experts") == "fp4_e2m1[1x32]:e8m0:even"
    assert scheme(v4, "layers.3.ffn.shared_experts.w1") == BLOCK
    assert scheme(m3, "model.layers.0.self_attn.q_proj") == MXFP8
    assert scheme(m3, "model.layers.3.block_sparse_moe.experts.0.w1", "experts") == W4A4
    assert m3.unmatched() == ("modules_to_not_convert[0] = 'lm_head'",)


def test_experts_that_are_stored_in_fp8_are_as_the_json_says() -> None:
    v4 = DeepseekV4Fp8Config.from_config(V4)
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(256, 128)),
        "scale": StoredTensor(dtype="float8_e8m0fnu", shape=(2, 1)),
    }
    assert v4.notes() == ()
    assert scheme(v4, EXPERT, "experts", **stored) == BLOCK
    assert v4.notes() == (
        "no experts are stored as fp4_e2m1[1x32]:e8m0:even, which deepseek_v4_fp8 is for: it "
        "changes nothing",
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_experts_in_mxfp4_decode_bit_for_bit(dtype: torch.dtype) -> None:
    config = DeepseekV4Fp8Config.from_config(V4)
    spec = DeepseekV4Fp8Config.experts.weight
    made = quantize_weight(torch.randn(32, 64, generator=torch.Generator().manual_seed(2)), spec)
    (segment,) = made.segments
    tensors = {
        "weight": pack_bytes(segment.codes, bits=4).view(dtype),
        "scale": segment.scale.to(torch.float8_e8m0fnu),
    }
    facts = LayerFacts(prefix=EXPERT, kind="experts", stored=headers(tensors))
    decision = config.scheme_for(facts)
    assert decision.scheme is not None, decision.because
    weight = decode(config, decision.scheme, tensors, facts)
    assert torch.equal(weight.dequantize(), made.dequantize())


def test_a_file_that_says_so_of_its_experts_is_taken_over() -> None:
    device = Platform(name="demo", arch="one", device="demo")
    said = {**V4, "expert_dtype": "fp4"}
    assert DeepseekV4Fp8Config.claim(said, None, device) == "expert_dtype is 'fp4'"
    assert DeepseekV4Fp8Config.claim(V4, None, device) is None
    assert DeepseekV4Fp8Config.claim({**said, "quant_method": "awq"}, None, device) is None
