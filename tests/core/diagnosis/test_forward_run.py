"""A watched pass: the innermost module is named, in the order in which modules end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quantdock.diagnosis.forward_run import run_forward


class Inner(nn.Module):
    """Two linear layers and, between them, what a test says."""

    def __init__(self, between) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.between = between

    def forward(self, x):
        return self.down(self.between(self.up(x)))


class Outer(nn.Module):
    """A model as transformers calls it."""

    def __init__(self, between) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.inner = Inner(between)

    def forward(self, input_ids, use_cache):
        assert use_cache is False
        return type("Output", (), {"logits": self.inner(self.embed(input_ids))})()


def run(between):
    seen = []
    ids = torch.tensor([[1, 2]])
    model = Outer(between)
    found = run_forward(model, ids, lambda name, _, given, y: seen.append((name, given[0].shape)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    return found, seen


def test_linear_layers_are_watched_in_their_order():
    found, seen = run(lambda x: x)
    assert seen == [("inner.up", (1, 2, 4)), ("inner.down", (1, 2, 4))]
    assert found.logits.shape == (1, 2, 4)
    assert (found.bad, found.error, found.inside) == ("", None, [])


def test_what_ends_between_two_layers_shows_at_the_next():
    found, _ = run(lambda x: x / 0.0)
    assert (found.bad, found.bad_kind) == ("inner.down", "NaN")
    assert found.bad_input in ("NaN", "infinity"), "so it began before"
    assert found.bad_op == "Linear"


def test_an_error_is_kept_with_the_module_it_came_from():
    def fail(x):
        raise RuntimeError("no such op")

    found, seen = run(fail)
    assert (found.stopped_in, str(found.error)) == ("inner", "no such op")
    assert [name for name, _ in seen] == ["inner.up"]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_the_layer_that_makes_it_is_named(value):
    model = Outer(lambda x: x)
    model.inner.up.bias.data[0] = value
    found = run_forward(model, torch.tensor([[1]]), lambda *_: None)
    kind = "NaN" if value != value else "infinity"
    assert (found.bad, found.bad_kind, found.bad_input) == ("inner.up", kind, "")
