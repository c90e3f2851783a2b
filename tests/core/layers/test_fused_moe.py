"""FusedMoE as engines build it: tensors pushed one by one, plain or quantized."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quantdock
from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import ConfigError, FormatError, LoadError
from quantdock.formats import parse_spec
from quantdock.layers import FusedMoE
from quantdock.methods.expert_shape import ExpertShape
from quantdock.methods.experts import ExpertFacts
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.numerics import quantize
from quantdock.schemes import LayerFacts, StoredTensor

E, H, I = 3, 32, 48  # noqa: E741
SHARDS = {"gate": ("w13", 0, (I, H)), "up": ("w13", 1, (I, H)), "down": ("w2", 0, (H, I))}


def gate(hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return F.silu(first) * second


def experts(dtype: str = "float8_e4m3fn", odd: int | None = None) -> list[ExpertFacts]:
    """Return facts of experts with a weight and a scale each; ``odd`` is stored plain."""

    def facts(expert: int, role: str) -> LayerFacts:
        shape = SHARDS[role][2]
        stored = {"weight": StoredTensor(dtype=dtype, shape=shape)}
        if expert == odd:
            stored = {"weight": StoredTensor(dtype="bfloat16", shape=shape)}
        elif dtype != "bfloat16":
            stored["weight_scale"] = StoredTensor(dtype="float32", shape=())
        prefix = f"moe.experts.{expert}.{role}_proj"
        return LayerFacts(prefix=prefix, kind="experts", stored=stored)

    return [
        ExpertFacts(w13=(facts(e, "gate"), facts(e, "up")), w2=(facts(e, "down"),))
        for e in range(E)
    ]


def build(config=None, facts=None, **options) -> FusedMoE:
    shape = ExpertShape(num_experts=E, hidden_size=H, intermediate_size=I, w13_sizes=(I, I))
    return FusedMoE(
        facts or experts(),
        shape,
        gate=gate,
        params_dtype=torch.float32,
        quant_config=config,
        **options,
    )


def fp8() -> Fp8Config:
    return Fp8Config.from_config({"quant_method": "fp8"}).bind(quantdock.dispatch_for("cpu"))


@pytest.fixture
def weights() -> dict[tuple[int, str], Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        (e, role): torch.randn(shape, generator=generator)
        for e in range(E)
        for role, (_, _, shape) in SHARDS.items()
    }


def push(layer: FusedMoE, weights, skip: tuple[int, str] | None = None) -> None:
    """Push every weight; where the layer is quantized, its fp8 codes and scale."""
    spec = parse_spec("fp8_e4m3[*x*]")
    for (expert, role), weight in weights.items():
        matrix, shard, _ = SHARDS[role]
        if (expert, role) == skip:
            continue
        tensors = {"weight": weight}
        if isinstance(layer.quant_method, QuantizedExpertsMethod):
            made = quantize(weight, spec)
            tensors = {"weight": made.codes, "weight_scale": made.scale.view(())}
        for name, tensor in tensors.items():
            layer.quant_method.load(layer, tensor, expert, matrix, name, shard)


def routed() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 5, H, generator=generator)
    ids = torch.stack([torch.randperm(E, generator=generator)[:2] for _ in range(10)])
    return x, ids, torch.rand(10, 2, generator=generator)


def expected(weights, x, ids, topk) -> Tensor:
    out = torch.zeros(x.reshape(-1, H).shape)
    for token, row in enumerate(x.reshape(-1, H)):
        for expert, weight in zip(ids[token].tolist(), topk[token], strict=True):
            w = {role: weights[expert, role] for role in SHARDS}
            hidden = F.silu(w["gate"] @ row) * (w["up"] @ row)
            out[token] += weight * (w["down"] @ hidden)
    return out.view(x.shape)


def test_plain_experts(weights):
    layer = build(facts=experts("bfloat16"))
    push(layer, weights)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, topk = routed()
    wanted = expected(weights, x, ids, topk)
    torch.testing.assert_close(layer(x, ids, topk), wanted, rtol=1e-3, atol=1e-3)
    assert layer.w13_weight.shape == (E, 2 * I, H)


@pytest.mark.parametrize("wrong", ["x", "ids", "weights"])
def test_shapes_that_do_not_fit_are_refused(weights, wrong):
    layer = build(fp8())
    push(layer, weights)
    layer.quant_method.process_weights_after_loading(layer)
    given = dict(zip(("x", "ids", "weights"), routed(), strict=True))
    given[wrong] = given[wrong][..., :1] if wrong == "weights" else given[wrong].flatten()[None]
    with pytest.raises(FormatError, match="ends in 32 columns") as told:
        layer(*given.values())
    assert str(list(given[wrong].shape)) in told.value.what


def test_quantized_experts_are_stacked_and_restored_bit_for_bit(weights):
    layer = build(fp8())
    push(layer, weights)
    layer.quant_method.process_weights_after_loading(layer)
    assert (layer.w13_weight.shape, layer.w2_weight.shape) == ((E, 2 * I, H), (E, H, I))
    method = layer.quant_method
    assert isinstance(method, QuantizedExpertsMethod)
    spec = parse_spec("fp8_e4m3[*x*]")
    decoded = {}
    for expert in range(E):
        w13, w2 = method.restore(layer, expert)
        for segment, role in zip((*w13.segments, *w2.segments), SHARDS, strict=True):
            made = quantize(weights[expert, role], spec)
            assert torch.equal(segment.codes.view(torch.uint8), made.codes.view(torch.uint8))
            decoded[expert, role] = segment.dequantize()
    x, ids, topk = routed()
    result = layer(x, ids, topk)
    error = (result - expected(decoded, x, ids, topk)).norm() / result.norm()
    assert 0 < error < 0.05  # activations are rounded to fp8 twice


def test_the_layer_keeps_its_formats_and_its_addresses(weights):
    layer = build(fp8())
    push(layer, weights)
    layer.quant_method.process_weights_after_loading(layer)
    address = layer.w13_weight.data_ptr()
    layer.half()
    assert layer.w13_weight.dtype == torch.float8_e4m3fn
    assert layer.w13_weight_scale.dtype == torch.float32
    push(layer, {key: 2 * value for key, value in weights.items()})
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.w13_weight.data_ptr() == address


@pytest.mark.parametrize("config", [None, "fp8"])
def test_a_missing_weight_names_its_expert(weights, config):
    layer = build(fp8() if config else None, experts() if config else experts("bfloat16"))
    push(layer, weights, skip=(1, "down"))
    with pytest.raises(LoadError, match=r"experts\.1\.down_proj|w2 of expert 1"):
        layer.quant_method.process_weights_after_loading(layer)


def test_experts_that_are_stored_differently_are_refused():
    with pytest.raises(
        ConfigError, match=r"experts of one layer differ[\s\S]*experts\.2\.gate_proj is plain"
    ):
        build(fp8(), experts(odd=2))


def test_runners_of_adapters_learn_the_format(weights):
    layer = build(fp8())
    push(layer, weights)
    layer.quant_method.process_weights_after_loading(layer)
    found = layer.base_format
    assert (found.in_features, found.out_features, found.experts) == (H, H, layer.shape)
    assert str(found.scheme) == "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    assert (found.kernel, found.dtype, found.device.type) == ("reference", torch.float32, "cpu")
    assert found.experts.intermediate_size == I
    plain = build(facts=experts("bfloat16")).base_format
    assert (plain.scheme, plain.kernel, plain.experts.num_experts) == (None, None, E)


def test_experts_that_are_called_too_early_say_what_they_wait_for(weights):
    layer = build(fp8(), experts())
    push(layer, weights)
    with pytest.raises(LoadError, match="was called before its weights were ready"):
        layer(*routed())
    layer.quant_method.process_weights_after_loading(layer)
    layer(*routed())
