"""Division: every unit is held, by as many ranks as are meant to hold it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quantdock.layers.partition import (
    Division,
    legal_tp_sizes,
    require_shardable,
    why_not_shardable,
)


def test_blocks_stay_whole_while_there_are_enough_for_all():
    size = Division(name="x", size=704, block=128)
    widths = {ranks: [len(size.part(rank, ranks)) for rank in range(ranks)] for ranks in (2, 4, 8)}
    assert widths == {
        2: [384, 320],
        4: [128, 256, 128, 192],
        8: [64, 64, 128, 64, 64, 128, 64, 128],
    }
    even = Division(name="x", size=512, block=128)
    assert [len(even.part(rank, 4)) for rank in range(4)] == [128] * 4
    heads = Division(name="x", size=512, heads=8, block=128)
    assert [len(heads.part(rank, 8)) for rank in range(8)] == [64] * 8


@given(st.integers(1, 1000), st.sampled_from([1, 2, 32, 96, 128]), st.integers(1, 64))
def test_blocks_cover_everything_once(size, block, ranks):
    division = Division(name="x", size=size, block=block)
    if not division.why_not(ranks):
        parts = [division.part(rank, ranks) for rank in range(ranks)]
        assert [row for part in parts for row in part] == list(range(size))
        assert all(parts)


@given(st.integers(1, 64), st.integers(1, 16), st.booleans(), st.booleans(), st.integers(1, 70))
def test_what_is_legal_covers_everything_evenly(units, width, is_shared, is_ragged, size):
    heads = None if is_ragged else units
    division = Division(
        name="x",
        size=units * width,
        heads=heads,
        is_shared=is_shared and not is_ragged,
        is_ragged=is_ragged,
    )
    if division.why_not(size):
        return
    parts = [division.part(rank, size) for rank in range(size)]
    held = Counter(row for part in parts for row in part)
    assert set(held) == set(range(units * width))
    assert len(set(held.values())) == 1, "no row is held by more ranks than another"
    assert all(len(part) > 0 for part in parts)
    if not is_ragged:
        assert len({len(part) for part in parts}) == 1
        assert all(part.start % width == 0 for part in parts)
    if not division.is_shared:
        assert set(held.values()) == {1}


def test_only_keys_and_values_are_shared():
    assert Division(name="q", size=128, heads=2).why_not(4) == (
        "2 heads cannot be divided among 4 ranks"
    )
    keys = Division(name="k", size=128, heads=2, is_shared=True)
    assert [keys.part(rank, 4) for rank in range(4)] == [range(64)] * 2 + [range(64, 128)] * 2
    assert keys.why_not(3) == "neither of 2 heads and 3 ranks divides the other"


def test_sizes_that_work_work_for_every_layer():
    divisions = [
        Division(name="up", size=704),
        Division(name="down", size=704, side="columns"),
        Division(name="q", size=256, heads=4),
        Division(name="k", size=128, heads=2, is_shared=True),
        Division(name="vocabulary", size=1023, is_ragged=True),
    ]
    assert legal_tp_sizes(divisions) == (1, 2, 4)
    assert why_not_shardable(divisions, 4) == ()
    assert why_not_shardable(divisions, 3) == (
        "up: 704 rows cannot be divided among 3 ranks",
        "down: 704 columns cannot be divided among 3 ranks",
        "q: 4 heads cannot be divided among 3 ranks",
        "k: neither of 2 heads and 3 ranks divides the other",
    )
    require_shardable(divisions, 2, "the model")
