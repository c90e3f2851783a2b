"""Words on the command line that stand for something."""

from __future__ import annotations

import pytest

from quantdock.cli.options import parse_choices
from quantdock.errors import ConfigError


def test_choices():
    assert parse_choices(None) == {}
    assert parse_choices(["a.*=fp8", "b=c=none"]) == {"a.*": "fp8", "b=c": "none"}


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (["fp8"], "--choose 'fp8' has no '='"),
        (["=fp8"], "--choose '=fp8' has no pattern"),
        (["a=fp8", "a=none"], "the pattern 'a' twice.\n  once for 'fp8' and once for 'none'"),
    ],
)
def test_choices_that_say_nothing_or_two_things(pairs, text):
    with pytest.raises(ConfigError) as caught:
        parse_choices(pairs)
    assert text in str(caught.value)
