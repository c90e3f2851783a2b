"""Layers that a model's classes keep plain, as their source shows."""

from __future__ import annotations

import pytest

from quantdock.plan import model_source
from quantdock.plan.model_source import kept_layers

SOURCE = """
class First:
    def forward(self, x):
        return self.called(x) + self.kept.weight @ x

class Second:
    def forward(self, x):
        return self.inner.weight.T
"""


def test_the_class_that_multiplies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "_source", lambda model_type: SOURCE)
    assert kept_layers.__wrapped__("any") == {
        "kept": "First multiplies by its weight without calling it"
    }


@pytest.mark.parametrize("model_type", ["llama", "no_such_model", "../llama", "", "a" * 300])
def test_most_models_and_unknown_ones_keep_nothing(model_type: str) -> None:
    assert kept_layers(model_type) == {}
