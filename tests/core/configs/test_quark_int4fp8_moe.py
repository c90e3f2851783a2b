"""quark_int4fp8_moe: experts in int4 under two scales at load, and nothing else."""

from __future__ import annotations

import pytest
import torch

from quantdock import dispatch_for
from quantdock.configs.quark_int4fp8_moe import QuarkInt4Fp8MoeConfig
from quantdock.schemes import Kind, LayerFacts, StoredTensor

STORED = {"weight": StoredTensor(dtype="bfloat16", shape=(48, 64))}


def test_experts_alone_are_quantized() -> None:
    config = QuarkInt4Fp8MoeConfig.online().bind(dispatch_for("cpu"))
    facts = LayerFacts(prefix="a.experts.0.up_proj", kind="experts", stored=STORED)
    scheme = config.scheme_for(facts).scheme
    assert str(scheme) == "int4[1x*]:second[*x*] x fp8_e4m3[1x*]:dynamic"
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    made = config.decode(scheme, [{"weight": weight}], facts)
    (segment,) = made.segments
    in_fp8 = segment.codes.float() * segment.scale  # what fp8 arithmetic computes with
    assert in_fp8.abs().max() <= 448
    assert (made.dequantize() - weight).abs().max() <= segment.dequantize().abs().max() / 7
    kinds: tuple[Kind, ...] = ("linear", "head", "embedding")
    for kind in kinds:
        decision = config.scheme_for(LayerFacts(prefix="a.q_proj", kind=kind, stored=STORED))
        assert decision.kind == "unquantized" and "stands for experts" in decision.because


def test_the_name_is_for_16_bit_files() -> None:
    from quantdock.errors import ConfigError

    with pytest.raises(ConfigError, match="no file is stored in it"):
        QuarkInt4Fp8MoeConfig.from_config({"quant_method": "quark_int4fp8_moe"})
