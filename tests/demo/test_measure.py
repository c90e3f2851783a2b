"""The demo's measures, against models whose answers are known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from demo.measure import generate_greedily, perplexity, tokens_per_second

VOCAB = 8


class Encoded(dict):
    """What a tokenizer returns, as far as the measures use it."""

    @property
    def input_ids(self) -> Tensor:
        return self["input_ids"]

    def to(self, device: torch.device) -> Encoded:
        return self


class DigitTokenizer:
    """One token a digit."""

    def __call__(self, text: str, **options: object) -> Encoded:
        return Encoded(input_ids=torch.tensor([[int(digit) for digit in text]]))

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(str, ids))


class NextDigitModel(nn.Module):
    """Gives the successor (modulo 8) of each token the logit ``strength``, all others 0."""

    device = torch.device("cpu")

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.seen: list[int] = []

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.seen.append(input_ids.shape[1])
        logits = nn.functional.one_hot((input_ids + 1) % VOCAB, VOCAB) * self.strength
        return SimpleNamespace(logits=logits.to(torch.bfloat16))

    def generate(self, input_ids: Tensor, max_new_tokens: int, **options: object) -> Tensor:
        new = (input_ids[:, -1:] + 1 + torch.arange(max_new_tokens)) % VOCAB
        return torch.cat([input_ids, new], dim=1)


@pytest.mark.parametrize("window", [1, 3, 4, 100])
def test_perplexity_is_the_inverse_of_the_probability_of_each_token(window: int) -> None:
    model = NextDigitModel(strength=2.0)
    expected = (math.exp(2) + VOCAB - 1) / math.exp(2)
    assert perplexity(model, DigitTokenizer(), "0123456701", window) == pytest.approx(expected)
    assert sum(model.seen) == 9
    assert max(model.seen) == min(window, 9)


def test_perplexity_of_an_indifferent_model_is_the_size_of_its_vocabulary() -> None:
    value = perplexity(NextDigitModel(strength=0.0), DigitTokenizer(), "0730")
    assert value == pytest.approx(VOCAB)


def test_generation_gives_the_text_and_a_rate() -> None:
    made = generate_greedily(NextDigitModel(1.0), DigitTokenizer(), "01", num_tokens=4)
    assert made.text == "012345"
    assert made.tokens_per_second > 0
    assert tokens_per_second(NextDigitModel(1.0), DigitTokenizer(), "01") > 0
