"""The collector comes back as it was."""

from __future__ import annotations

import gc

import pytest

from quantdock.checkpoint.collector import collector_paused


def test_it_is_off_inside_and_on_again_after_an_error_too():
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collector_paused():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_an_inner_pause_does_not_end_the_outer_one():
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()


def test_a_decorated_function_works_each_time():
    @collector_paused()
    def enabled() -> bool:
        return gc.isenabled()

    assert (enabled(), enabled(), gc.isenabled()) == (False, False, True)
