"""A model that keeps keys and values in fp4: what it says, what it holds, what it generates."""

from __future__ import annotations

import pytest
import torch

import quantdock
from demo.models import TINY_LLAMA
from quantdock.errors import ConfigError

PROMPT = torch.arange(3, 40)[None]


def logits(model, ids=PROMPT) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


@pytest.fixture
def folder():
    return TINY_LLAMA


def test_the_plan_says_what_a_token_takes(folder):
    plan = quantdock.load(folder, "none", device="cpu", kv_cache="fp4").quantdock_plan
    plain = quantdock.explain(folder, platform="cpu").attention[0]
    for layer in (*plan.attention, *quantdock.explain(folder, kv_cache="fp4").attention):
        assert layer.scheme == "fp4_e2m1[group]:dynamic"
        assert layer.bytes_per_token == plain.bytes_per_token * 9 // 32  # 4.5 bits for 16
        assert layer.because.endswith("each 16 numbers of a token and head have one")


def test_text_stays_close(folder):
    plain, model = (
        quantdock.load(folder, "none", device="cpu", kv_cache=word) for word in ("none", "fp4")
    )
    found, expected = logits(model).log_softmax(-1), logits(plain).log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert 0 < divergence < 0.02


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static"}])
def test_it_generates_and_holds_what_it_said(folder, options):
    model = quantdock.load(folder, "none", device="cpu", kv_cache="fp4")
    made = model.generate(PROMPT, max_new_tokens=8, do_sample=False, **options)
    assert made.shape == (1, PROMPT.shape[1] + 8)
    cache = model.quantdock_kv_cache.new()
    with torch.no_grad():
        model(input_ids=PROMPT, cache=cache)
    tokens = 64  # the least room
    layer = model.quantdock_plan.attention[0]
    assert cache.layers[0].num_bytes == tokens * layer.bytes_per_token


def test_a_prompt_in_pieces_is_the_same(folder):
    model = quantdock.load(folder, "none", device="cpu", dtype="float32", kv_cache="fp4")
    cache = model.quantdock_kv_cache.new()
    with torch.no_grad():
        parts = [model(input_ids=p, cache=cache).logits for p in PROMPT.split(10, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), logits(model), rtol=1e-4, atol=1e-4)


def test_heads_of_another_width_are_refused(shared):
    folder = shared / "models" / "bases" / "stories260k-d128"  # heads of 8 numbers
    for run in (quantdock.load, quantdock.explain):
        with pytest.raises(ConfigError, match=r"groups of 16 numbers.* have 16 together"):
            run(folder, kv_cache="fp4")
