"""Quantized experts divided among ranks, as the plan of the model's authors says; same logits."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock import ParallelGroup
from quantdock.errors import ConfigError
from quantdock.layers import FusedMoE
from tests.core.integrations.transformers.test_expert_models import MODELS, SMALL
from tests.toy_ranks import in_threads, relative

METHODS = ("int8_per_channel_weight_only", "mxfp4_online")


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", dtype="float32", **options)


def experts_of(model) -> list[FusedMoE]:
    return [module for module in model.modules() if isinstance(module, FusedMoE)]


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_compute_what_one_does(make_toy, model_type, method):
    """Weights alone are quantized, so that sums differ by their order only."""
    folder = make_toy(model_type, torch.float32, **{**SMALL, **MODELS[model_type]})
    alone = load(folder, method)
    expected = logits(alone)

    def rank(group: ParallelGroup):
        model = load(folder, method, tp=group)
        return logits(model), [len(e.shape.own_features) for e in experts_of(model)], model

    (first, one, model), (second, other, _) = in_threads(2, rank)
    for found in (first, second):
        assert relative(found, expected) < 1e-5
    whole = [e.shape.intermediate_size for e in experts_of(alone)]
    assert [a + b for a, b in zip(one, other, strict=True)] == whole
    told = {p.shard for p in model.quantdock_plan.layers if p.kind == "experts" and p.scheme}
    assert told == {
        f"features of each expert 0-{n - 1} of {w}" for n, w in zip(one, whole, strict=True)
    }


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("size", [2])
def test_ranks_hold_experts_whole(make_toy, model_type, size):
    folder = make_toy(model_type, torch.float32, **{**SMALL, **MODELS[model_type]})
    expected = logits(load(folder, "mxfp4"))

    def rank(group: ParallelGroup):
        model = load(folder, "mxfp4", tp=group, expert_parallel=True)
        return logits(model), [len(e.experts) for e in experts_of(model)], model

    results = in_threads(size, rank)
    for found, _, _ in results:
        assert relative(found, expected) < 1e-5
    num_experts = experts_of(results[0][2])[0].shape.num_experts
    assert {sum(counts) for counts in zip(*(held for _, held, _ in results), strict=True)} == {
        num_experts
    }
    told = {p.shard for p in results[0][2].quantdock_plan.layers if p.kind == "experts"}
    assert told == {f"experts 0-{-(-num_experts // size) - 1} of {num_experts}"}


def test_experts_that_no_plan_names_are_held_whole(shared):
    """gpt-oss: transformers' plan divides the vocabulary alone."""
    folder = shared / "models" / "gptoss-mxfp4-even"
    ids = load_file(folder / "golden.safetensors")["input_ids"].view(1, -1)
    expected = logits(load(folder), ids)

    def rank(group: ParallelGroup):
        model = load(folder, tp=group)
        return logits(model, ids), [len(e.experts) for e in experts_of(model)]

    for found, held in in_threads(2, rank):
        assert relative(found, expected) < 1e-5
        assert held == [2, 2]


def test_more_ranks_than_experts_are_refused(shared):
    folder = shared / "models" / "gptoss-mxfp4-even"
    with pytest.raises(ConfigError, match=r"experts: 4 experts leave some of 8 ranks empty"):
        load(folder, tp=ParallelGroup(rank=0, size=8))


def test_ranks_of_another_tools_file(shared, monkeypatch):
    from quantdock.configs.fp8 import Fp8Config

    monkeypatch.setattr(Fp8Config, "executed", lambda self, scheme: scheme.weight_only())
    folder = shared / "models" / "fp8block-mixtral"
    golden = load_file(folder / "golden.safetensors")
    ids = golden["input_ids"].view(1, -1)
    expected = golden["logits_dequant"].view(1, ids.shape[1], -1)
    for found in in_threads(2, lambda group: logits(load(folder, tp=group), ids)):
        assert (found - expected).abs().max() < 5e-4


def test_ranks_that_cannot_divide_the_features_are_refused(make_toy):
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 160}
    folder = make_toy("mixtral", **{**SMALL, **MODELS["mixtral"], **sizes})
    with pytest.raises(ConfigError, match=r"experts: 160 rows cannot be divided among 3 ranks"):
        load(folder, "mxfp4", tp=ParallelGroup(rank=0, size=3))


def test_experts_that_are_not_quantized_are_whole_on_every_rank(make_toy):
    folder = make_toy("mixtral", torch.float32, **{**SMALL, **MODELS["mixtral"]})
    options = {"ignore": ["*.experts.*"]}
    expected = logits(load(folder, "int8_per_channel_weight_only", **options))

    def rank(group: ParallelGroup):
        model = load(folder, "int8_per_channel_weight_only", tp=group, **options)
        assert experts_of(model) == []
        return logits(model)

    for found in in_threads(2, rank):
        assert relative(found, expected) < 1e-5
