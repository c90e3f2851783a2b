"""The small Llama that ships with the demo: transformers loads it and it knows its text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.measure import generate_greedily, perplexity
from demo.models import ROOT, TINY_LLAMA

TEXT = ROOT / "demo" / "text.txt"
PERPLEXITY_BOUND = 23.0  # measured: 20.8; untrained, it would be about 1,024


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY_LLAMA)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(TINY_LLAMA, dtype=torch.float32)


def test_the_checkpoint_is_small_and_has_a_ragged_edge(model: Any) -> None:
    size = sum(path.stat().st_size for path in TINY_LLAMA.iterdir())
    assert size < 8e6
    assert model.config.intermediate_size % 128 == 64
    assert model.lm_head.weight is model.model.embed_tokens.weight
    stored = load_file(TINY_LLAMA / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in stored


def test_the_perplexity_on_the_held_out_text_is_that_of_a_trained_model(
    model: Any, tokenizer: Any
) -> None:
    value = perplexity(model, tokenizer, TEXT.read_text(encoding="utf-8"))
    assert 10 < value < PERPLEXITY_BOUND


def test_the_tokenizer_encodes_any_text(tokenizer: Any) -> None:
    text = "Naomi said, naïve 漢字 \t🙂\n\n<|endoftext|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer) == 1024


def test_greedy_generation_gives_words(model: Any, tokenizer: Any) -> None:
    made = generate_greedily(model, tokenizer, "And it came to pass", num_tokens=24)
    assert made.text.startswith("And it came to pass")
    assert len(set(made.text.split())) > 8
