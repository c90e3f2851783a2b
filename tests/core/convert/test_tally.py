"""Counts of changed values, over layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdock.convert.tally import Tally
from quantdock.errors import MismatchError
from quantdock.numerics import Change


def test_changes_are_summed_and_the_worst_layer_is_named():
    tally = Tally("mxfp8")
    tally.add("a", Change(num_values=100, num_changed=0, largest=0.0))
    assert list(tally.notes()) == ["exact: all 100 values stay as they were"]
    tally.require_exact(Path("in"))
    tally.add("b", Change(num_values=300, num_changed=10, largest=0.125))
    tally.add("b", Change(num_values=300, num_changed=20, largest=0.25))
    assert list(tally.notes()) == [
        "not exact: 20 of 400 values changed (5 %), by 25 % of themselves at most",
        "most in b: 20 of 300 values changed (6.67 %), by 25 % of themselves at most",
    ]
    with pytest.raises(MismatchError, match="in cannot become mxfp8 without changing values"):
        tally.require_exact(Path("in"))
