"""Where metadata and stored tensors disagree: S05, S14, S16, S37."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quantdock.configs.fp8 import Fp8Config
from quantdock.schemes import Decision, LayerFacts, StoredTensor

FP8 = StoredTensor(dtype="float8_e4m3fn", shape=(256, 256))
BF16 = StoredTensor(dtype="bfloat16", shape=(256, 256))
SCALE = StoredTensor(dtype="float32", shape=(2, 2))
ONE = StoredTensor(dtype="float32", shape=())
BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def facts(prefix: str, of_kind: str = "linear", /, **stored: StoredTensor) -> LayerFacts:
    return LayerFacts(prefix=prefix, kind=of_kind, stored=stored)


@pytest.fixture
def config() -> Fp8Config:
    return Fp8Config.from_config({**BLOCK, "modules_to_not_convert": ["lm_head", "o_proj"]})


def test_plain_layers_that_no_entry_names_stay_plain(config: Fp8Config, caplog: Any) -> None:
    """S16, S37: one note for each pattern of names; that a router is plain surprises nobody."""
    with caplog.at_level(logging.WARNING, "quantdock"):
        for layer in range(3):
            decision = config.scheme_for(facts(f"mtp.layers.{layer}.mlp.down_proj", weight=BF16))
            assert decision == Decision.unquantized(
                "the file stores it as bfloat16", "the file's headers"
            )
        assert config.scheme_for(facts("mtp.mlp.gate", weight=BF16)).kind == "unquantized"
        assert config.scheme_for(facts("mtp.fc", weight=BF16)).kind == "unquantized"
    assert config.notes() == (
        "mtp.layers.*.mlp.down_proj is stored as bfloat16, though no entry leaves it out; the "
        "stored tensors decide",
        "mtp.fc is stored as bfloat16, though no entry leaves it out; the stored tensors decide",
    )
    assert [r.getMessage() for r in caplog.records] == [f"fp8: {note}" for note in config.notes()]


def test_quantized_layers_of_the_same_names_are_quantized(config: Fp8Config) -> None:
    decision = config.scheme_for(
        facts("mtp.layers.0.mlp.down_proj", weight=FP8, weight_scale_inv=SCALE)
    )
    assert str(decision.scheme) == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    assert config.notes() == ()


def test_listed_and_stored_quantized_is_quantized(config: Fp8Config) -> None:
    stored = {"weight": FP8, "weight_scale_inv": SCALE}
    for layer in range(2):
        decision = config.scheme_for(facts(f"model.layers.{layer}.self_attn.o_proj", **stored))
        assert decision.kind == "quantized"
    assert config.notes() == (
        "model.layers.*.self_attn.o_proj is stored as float8_e4m3fn, though "
        "modules_to_not_convert[1] = 'o_proj' leaves it out; the stored tensors decide",
    )


def test_listed_and_stored_plain_is_as_expected(config: Fp8Config) -> None:
    decision = config.scheme_for(facts("lm_head", "head", weight=BF16))
    assert decision.source == "modules_to_not_convert[0] = 'lm_head'"
    assert config.scheme_for(facts("model.embed_tokens", "embedding", weight=BF16)).kind == (
        "unquantized"
    )
    assert config.notes() == ()


def test_norms_are_no_contradiction(config: Fp8Config) -> None:
    norm = StoredTensor(dtype="bfloat16", shape=(256,))
    assert config.scheme_for(facts("model.norm", weight=norm)).kind == "unquantized"
    assert config.notes() == ()


def test_head_that_is_stored_quantized_is_quantized() -> None:
    config = Fp8Config.from_config(BLOCK)
    decision = config.scheme_for(facts("lm_head", "head", weight=FP8, weight_scale_inv=SCALE))
    assert decision.kind == "quantized"
    assert config.scheme_for(facts("lm_head", "head")).kind == "unquantized"  # tied: nothing stored


def test_missing_scale_is_named(config: Fp8Config) -> None:
    """S05 a."""
    decision = config.scheme_for(facts("model.layers.0.self_attn.q_proj", weight=FP8))
    assert decision.error
    assert decision.because.startswith(
        "model.layers.0.self_attn.q_proj.weight is stored as float8_e4m3fn and its scale is missing"
    )
    assert "weight_scale_inv" in decision.because


def test_missing_static_input_scale_is_named() -> None:
    config = Fp8Config.from_config({"activation_scheme": "static"})
    decision = config.scheme_for(facts("a.q_proj", weight=FP8, weight_scale=ONE))
    assert decision.because == ("activation_scheme is 'static' and a.q_proj.input_scale is missing")
    full = facts("a.q_proj", weight=FP8, weight_scale=ONE, activation_scale=ONE)
    assert str(config.scheme_for(full).scheme) == "fp8_e4m3[*x*] x fp8_e4m3[*x*]"


def test_input_scale_beside_dynamic_activations_is_taken_and_told() -> None:
    """S05 d: it is optional there."""
    config = Fp8Config.from_config({})
    assert config.scheme_for(facts("a.q_proj", weight=FP8, weight_scale=ONE)).kind == "quantized"
    assert config.notes() == ()
    stored = facts("a.k_proj", weight=FP8, weight_scale=ONE, input_scale=ONE)
    assert str(config.scheme_for(stored).scheme) == "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    assert config.notes() == (
        "a.k_proj is stored with an input scale, which is not used: activation_scheme is "
        "'dynamic'; the stored tensors decide",
    )


def test_other_tile_than_stated_is_taken_and_told(config: Fp8Config) -> None:
    decision = config.scheme_for(facts("a.q_proj", weight=FP8, weight_scale=ONE))
    assert str(decision.scheme) == "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    assert config.notes() == (
        "a.q_proj is stored as fp8_e4m3[*x*], though weight_block_size = [128, 128]; the stored "
        "tensors decide",
    )
    channel = StoredTensor(dtype="float32", shape=(256, 1))
    free = Fp8Config.from_config({})
    decision = free.scheme_for(facts("a.q_proj", weight=FP8, weight_scale=channel))
    assert str(decision.scheme) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    assert free.notes() == ()  # the JSON left it open


def test_impossible_number_of_scales_is_refused() -> None:
    """S17: expected against found."""
    wrong = StoredTensor(dtype="float32", shape=(127,))
    decision = Fp8Config.from_config({}).scheme_for(facts("a.b", weight=FP8, weight_scale=wrong))
    assert decision.error
    assert "has 127 elements" in decision.because
    assert "256 (one a row)" in decision.because


class TestParts:
    """S14: the shards of a fused layer, the experts of a layer."""

    def layer(self, *shards: str, plain: str = "") -> Decision:
        stored = {f"{s}.weight": BF16 if s == plain else FP8 for s in shards}
        stored |= {f"{s}.weight_scale_inv": SCALE for s in shards if s != plain}
        fused = LayerFacts(prefix="model.layers.5.self_attn.qkv_proj", stored=stored)
        return Fp8Config.from_config(BLOCK).scheme_for(fused)

    def test_parts_that_are_not_stored_have_no_vote(self) -> None:
        assert self.layer("q_proj", "k_proj").kind == "quantized"

    def test_parts_that_disagree_are_named(self) -> None:
        decision = self.layer("q_proj", "k_proj", "v_proj", plain="v_proj")
        stem = "model.layers.5.self_attn"
        assert decision.because == (
            f"the parts of one layer are stored differently: {stem}.q_proj is fp8_e4m3[128x128]; "
            f"{stem}.k_proj is fp8_e4m3[128x128]; {stem}.v_proj is bfloat16"
        )

    def test_part_without_scale_is_named(self) -> None:
        stored = {"gate_proj.weight": FP8, "up_proj.weight": FP8, "up_proj.scale": SCALE}
        fused = LayerFacts(prefix="mlp.gate_up_proj", stored=stored)
        decision = Fp8Config.from_config(BLOCK).scheme_for(fused)
        assert decision.because.startswith("mlp.gate_proj.weight is stored as float8_e4m3fn and")

    def test_experts(self) -> None:
        stored = {f"{e}.up_proj.weight": FP8 for e in range(2)}
        stored |= {f"{e}.up_proj.weight_scale_inv": SCALE for e in range(2)}
        experts = LayerFacts(prefix="mlp.experts", kind="experts", stored=stored)
        assert Fp8Config.from_config(BLOCK).scheme_for(experts).kind == "quantized"


def test_integers_are_no_fp8(config: Fp8Config) -> None:
    packed = StoredTensor(dtype="int8", shape=(256, 128))
    decision = config.scheme_for(facts("a.w1", weight=packed, weight_scale_inv=SCALE))
    assert (
        decision.because
        == "a.w1.weight is stored as int8 beside weight_scale_inv, which is not fp8"
    )
