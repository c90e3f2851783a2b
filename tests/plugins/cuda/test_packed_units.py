"""Every step of every tile has one program, and a tile's programs are those that its sum wants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantdock_cuda import packed_units
from quantdock_cuda.packed_matmul import RolesTile, sharers_of


@pytest.fixture
def program(monkeypatch):
    """Return what makes the functions of a program believe that they are its, of so many."""

    def become(number, count):
        plain = SimpleNamespace(
            program_id=lambda axis: number,
            num_programs=lambda axis: count,
            cdiv=lambda a, b: int((a + b - 1) / b),  # rounds to zero, as the GPU does
            where=lambda chosen, a, b: a if chosen else b,
            maximum=max,
            minimum=min,
        )
        monkeypatch.setattr(packed_units, "gl", plain)

    monkeypatch.setattr(packed_units, "GROUP", 64)
    monkeypatch.setattr(packed_units, "BAND", 4)
    return become


@pytest.mark.parametrize("num_tiles", [1, 3, 8, 21, 29])
@pytest.mark.parametrize("steps", [1, 2, 16, 33])
@pytest.mark.parametrize("parts", [1, 2, 4, 16])
@pytest.mark.parametrize("most", [8, 13])
def test_every_step_has_one_program(program, num_tiles, steps, parts, most):
    sharers = sharers_of(RolesTile(m=16, parts=parts), num_tiles, steps, most)
    shared = num_tiles % most if sharers else 0
    sizes = (16, 0, 64 * num_tiles, steps, num_tiles - shared, sharers, shared * steps)
    count = min(num_tiles, most) if num_tiles > shared else sharers
    owners, rooms = {}, set()
    form = SimpleNamespace(m=16, groups=1, split=sharers > 0)
    for number in range(count):
        program(number, count)
        share = packed_units.share_of.fn(sizes, form)
        assert share[0] >= 1
        for turn in range(share[0]):
            tile, top, left, first, last = packed_units.unit_of.fn(turn, share, sizes, form)
            assert (top, left) == (0, 64 * tile) and 0 <= first < last <= steps
            for step in range(first, last):
                assert owners.setdefault((tile, step), number) == number
            if last - first < steps:  # its sum has a room of its own
                room = (number, first == 0)
                assert room not in rooms
                rooms.add(room)
    assert len(owners) == num_tiles * steps
    for tile in range(num_tiles - shared, num_tiles):
        lowest, parts_of_it = packed_units.sharers_of.fn(tile, sizes)
        found = sorted({owners[tile, step] for step in range(steps)})
        assert found == list(range(lowest, lowest + parts_of_it))


def test_tiles_of_x_share_words(program):
    """Four tiles of x lie beside each other, then come the next rows of the weight."""
    program(0, 132)
    sizes = (16 * 6, 0, 64 * 3, 4, 18, 0, 0)
    form = SimpleNamespace(m=16, groups=1, split=False)
    share = (18, 18, 0, 0)
    places = []
    for tile in range(18):
        program(tile, 132)
        places.append(packed_units.unit_of.fn(0, share, sizes, form)[1:3])
    assert places[:5] == [(0, 0), (16, 0), (32, 0), (48, 0), (0, 64)]
    assert sorted(places) == [(16 * x, 64 * w) for x in range(6) for w in range(3)]


@pytest.mark.parametrize("m", [16, 17, 31, 32, 33, 100])
def test_tiles_end_where_x_does(program, m):
    """The copy engine is slow beyond x; each row is stored by the one tile whose place it is at."""
    tall = -(-m // 16)
    sizes, form = (m, 0, 64, 4, tall, 0, 0), SimpleNamespace(m=16, groups=1, split=False)
    owners = []
    for tile in range(tall):
        program(tile, tall)
        top = packed_units.unit_of.fn(0, (1, 1, 0, 0), sizes, form)[1]
        assert top + 16 <= m or tall == 1
        owners += range(-(-top // 16) * 16, min(top + 16, m))  # as packed_result stores them
    assert owners == list(range(m))
