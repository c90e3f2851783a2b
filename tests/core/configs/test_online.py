"""Online methods: decisions, choices, decoding."""

from __future__ import annotations

import pytest
import torch

from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.configs.online import (
    Fp8PerBlockConfig,
    Fp8PerChannelConfig,
    Fp8PerTensorConfig,
    OnlineConfig,
)
from quantdock.dispatch import Dispatch
from quantdock.errors import ConfigError
from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, Scheme, SchemeSet, SpecSet, StoredTensor
from quantdock.schemes.shorthands import SHORTHANDS

CLASSES: dict[str, type[OnlineConfig]] = {
    "fp8": Fp8Config,
    "fp8_per_tensor": Fp8PerTensorConfig,
    "fp8_per_channel": Fp8PerChannelConfig,
    "fp8_per_block": Fp8PerBlockConfig,
    "mxfp8": Mxfp8Config,
}
UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")


@pytest.mark.parametrize("name", CLASSES)
def test_word_stands_for_its_first_scheme(name: str) -> None:
    config = CLASSES[name].online()
    assert config.is_online
    assert (config.name, config.get_name()) == (name, name)
    decision = config.scheme_for(UP)
    assert decision.scheme == SHORTHANDS[name][0]
    assert decision.source == f"quantization = {name!r}"
    assert config.notes() == (f"{name} is {decision.scheme}",)


def test_only_the_name_of_tokens_promises_its_scheme() -> None:
    promised = [name for name, c in CLASSES.items() if c.online().scheme_for(UP).promised]
    assert promised == ["fp8_per_channel"]


def test_a_promise_is_of_the_layers_that_have_the_name() -> None:
    down = LayerFacts(prefix="model.layers.0.mlp.down_proj")
    for name, other in (("fp8_per_channel", "fp8_per_block"), ("fp8_per_block", "fp8_per_channel")):
        config = CLASSES[name].online(choices={"*.up_proj": other})
        told = {facts.prefix[-9:]: config.scheme_for(facts).promised for facts in (UP, down)}
        assert told == {"p.up_proj": "channel" in other, "down_proj": "channel" in name}


def test_a_promise_is_kept_under_another_name() -> None:
    """A plugin may register what it derives under a name of its own."""

    class Named(Fp8PerChannelConfig):
        name = "acme_fp8"

    config = Named.online(choices={"*.down_proj": "fp8_per_block"})
    down = LayerFacts(prefix="model.layers.0.mlp.down_proj")
    assert [config.scheme_for(facts).promised for facts in (UP, down)] == [True, False]


@pytest.mark.parametrize("name", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block"])
def test_no_checkpoint_is_stored_in_an_online_method(name: str) -> None:
    with pytest.raises(ConfigError, match=f"A checkpoint says that it is quantized with {name}"):
        CLASSES[name].from_config({"quant_method": name})


@pytest.mark.parametrize(
    ("prefix", "kind", "because"),
    [
        ("lm_head", "head", "online methods leave the head alone"),
        ("model.embed_tokens", "embedding", "online methods leave the embedding alone"),
        ("model.layers.0.self_attn", "attention", "attention has no weights of its own"),
        ("model.layers.0.mlp.gate", "linear", "a router stays exact, since it chooses experts"),
        (
            "model.layers.0.moe.router.layer",
            "linear",
            "a router stays exact, since it chooses experts",
        ),
    ],
)
def test_some_layers_are_left_alone(prefix: str, kind: str, because: str) -> None:
    decision = Fp8Config.online().scheme_for(LayerFacts(prefix=prefix, kind=kind))
    assert (decision.kind, decision.because) == ("unquantized", because)


def test_experts_are_quantized() -> None:
    experts = LayerFacts(prefix="model.layers.0.mlp.experts", kind="experts")
    assert Fp8Config.online().scheme_for(experts).kind == "quantized"


def test_users_leave_layers_out_and_choose_for_others() -> None:
    config = Fp8Config.online(
        ignore=["layers.3", "lm_head", "layers.9"],
        choices={"*.o_proj": "fp8_per_block", "re:.*layers\\.4\\.": "none", "*.x": "mxfp8"},
    )

    def decide(name: str, kind: str = "linear") -> tuple[str, str]:
        decision = config.scheme_for(LayerFacts(prefix=name, kind=kind))
        return str(decision.scheme), decision.source

    assert decide("model.layers.3.self_attn.o_proj") == ("None", "ignore[0] = 'layers.3'")
    assert decide("lm_head", "head") == ("None", "ignore[1] = 'lm_head'")
    assert decide("model.layers.0.self_attn.o_proj") == (
        "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        "choices['*.o_proj'] = 'fp8_per_block'",
    )
    assert decide("model.layers.4.mlp.up_proj")[0] == "None"
    assert decide(UP.prefix)[0] == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    assert config.unmatched() == ("ignore[2] = 'layers.9'", "choices['*.x'] = 'mxfp8'")


def test_a_router_is_quantized_where_the_user_says_so() -> None:
    gate = LayerFacts(prefix="model.layers.0.mlp.gate")
    assert Fp8Config.online(choices={"mlp.gate": "fp8"}).scheme_for(gate).kind == "quantized"


def test_shards_that_are_chosen_apart_are_refused() -> None:
    config = Fp8Config.online(ignore=["layers.0.mlp.up_proj"])
    decision = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.gate_up_proj"))
    assert decision.error
    assert "model.layers.0.mlp.gate_proj: not listed" in decision.because


def test_unknown_choice_is_named() -> None:
    with pytest.raises(ConfigError, match="'fp8_per_blok', which is no online method") as caught:
        Fp8Config.online(choices={"*": "fp8_per_blok"})
    assert "Did you mean 'fp8_per_block'?" in str(caught.value)


def test_stored_codes_cannot_be_quantized_again() -> None:
    stored = {"weight": StoredTensor(dtype="float8_e4m3fn", shape=(8, 8))}
    decision = Fp8Config.online().scheme_for(LayerFacts(prefix="a.b", stored=stored))
    assert decision.because == (
        "a.b.weight is stored as float8_e4m3fn; only plain floats can be quantized at load"
    )


def test_platform_chooses_among_the_schemes_and_binding_again_asks_anew() -> None:
    blocks = Kernel(
        name="blocks",
        target="x:X",
        accepts=SchemeSet(weight=SpecSet(granularities=frozenset({"block"})), activation=SpecSet()),
    )
    config = Fp8Config.online()
    assert config.scheme_for(UP).scheme == SHORTHANDS["fp8"][0]
    platform = Platform(name="toy", arch="t1", device="toy")
    config.bind(Dispatch(platform=platform, kernels=(blocks,)))
    decision = config.scheme_for(UP)
    assert decision.scheme == SHORTHANDS["fp8_per_block"][0]
    note = f"fp8 is {decision.scheme} on toy:t1, which has a kernel for it"
    assert (decision.because, config.notes()) == (note, (note,))


def test_platform_with_another_number_format_says_what_is_executed() -> None:
    class Other(Fp8Config):
        def executed(self, scheme: Scheme) -> Scheme:
            return scheme.weight_only()

    weight_only = Kernel(name="w8a16", target="x:X", accepts=SchemeSet(weight=SpecSet()))
    platform = Platform(name="toy", arch="t1", device="toy")
    dispatch = Dispatch(platform=platform, kernels=(weight_only,))
    online = Other.online().bind(dispatch).scheme_for(UP)
    assert online.because == "fp8 is fp8_e4m3[1x*] on toy:t1, which has a kernel for it"
    assert str(Other.from_config({}).scheme_for(UP).scheme) == "fp8_e4m3[*x*]"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CLASSES)
def test_weights_are_quantized_shard_by_shard(name: str, dtype: torch.dtype) -> None:
    config = CLASSES[name].online()
    scheme = SHORTHANDS[name][0]
    (slot,) = config.slots(scheme, 48, 64, UP)
    assert (slot.name, slot.shape, slot.default) == ("weight", (48, 64), None)
    assert str(dtype).removeprefix("torch.") in slot.dtypes
    generator = torch.Generator().manual_seed(1)
    small = torch.randn(48, 64, generator=generator).to(dtype)
    shards = [small, 100 * small[:16]]
    weight = config.decode(scheme, [{"weight": shard} for shard in shards], UP)
    assert [tuple(s.codes.shape) for s in weight.segments] == [(48, 64), (16, 64)]
    assert weight.shape == (64, 64)
    for segment, shard in zip(weight.segments, shards, strict=True):
        assert segment.spec == scheme.weight
        error = (segment.dequantize() - shard.float()).norm() / shard.float().norm()
        assert error < 0.04


def test_zero_weight_stays_zero() -> None:
    for name, config_class in CLASSES.items():
        scheme = SHORTHANDS[name][0]
        weight = config_class.online().decode(scheme, [{"weight": torch.zeros(40, 40)}], UP)
        assert torch.equal(weight.dequantize(), torch.zeros(40, 40))
