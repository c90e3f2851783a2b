"""A buffer against plain concatenation, and how often it copies."""

from __future__ import annotations

import pytest
import torch

from quantdock.kv_cache.token_buffer import LEAST_ROOM, ROOM_SHARE, TokenBuffer


def tokens(first, count, dtype=torch.int8):
    values = torch.arange(first, first + count).view(1, 1, -1, 1)
    return (values + torch.tensor([0, 100]).view(2, 1, 1, 1)).remainder(127).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float32])
def test_a_buffer_is_what_was_appended(dtype):
    buffer, expected, count = TokenBuffer(), [], 0
    for size in (1, 0, 7, LEAST_ROOM, 1, 300):
        new = tokens(count, size, dtype)
        buffer.append(new)
        expected.append(new)
        count += size
        assert len(buffer) == count
        whole = torch.cat([part.float() for part in expected], dim=2)
        assert buffer.view.dtype == dtype
        assert torch.equal(buffer.view.float(), whole)


def test_the_ends_can_be_dropped_and_appended_to():
    buffer = TokenBuffer()
    buffer.append(tokens(0, 10))
    buffer.drop_last(3)
    buffer.append(tokens(50, 2))
    assert buffer.view[0].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 50, 51]
    buffer.keep_last(4)
    buffer.append(tokens(60, LEAST_ROOM + 10))
    assert buffer.view[0].flatten().tolist() == [5, 6, 50, 51, *range(60, 127), *range(7)]
    buffer.drop_last(1000)
    assert len(buffer) == 0 and buffer.view.shape == (2, 1, 0, 1)


def test_rows_are_selected():
    buffer = TokenBuffer()
    buffer.append(tokens(0, 5, torch.float8_e4m3fn))
    buffer.change(lambda memory: memory.index_select(0, torch.tensor([1, 1, 0])))
    buffer.append(torch.full((3, 1, 1, 1), 7.0).to(torch.float8_e4m3fn))
    rows = buffer.view.float()[:, 0, :, 0]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert rows[:, -1].tolist() == [7.0, 7.0, 7.0]


def test_appending_one_by_one_copies_little_and_wastes_little():
    buffer, moved, count = TokenBuffer(), 0, 3000
    for index in range(count):
        before = buffer.num_bytes
        buffer.append(torch.zeros(1, 1, 1, 1, dtype=torch.int8))
        if buffer.num_bytes != before:
            moved += index
    assert moved <= ROOM_SHARE * count * 1.5
    assert buffer.num_bytes <= count * (1 + 1 / ROOM_SHARE) + LEAST_ROOM


def test_a_window_that_slides_keeps_its_memory_small():
    buffer = TokenBuffer()
    for index in range(2000):
        buffer.append(torch.full((1, 1, 1, 1), index % 100, dtype=torch.int8))
        buffer.keep_last(50)
    assert buffer.num_bytes <= 51 + LEAST_ROOM
    assert buffer.view.flatten().tolist() == list(range(50, 100))


def test_what_grew_in_inference_mode_can_go_on_without_it():
    buffer = TokenBuffer()
    with torch.inference_mode():
        buffer.append(tokens(0, 3))
        buffer.change(lambda memory: memory[:1])
    buffer.append(tokens(5, 1)[:1])
    assert buffer.view.flatten().tolist() == [0, 1, 2, 5]


def test_clear_frees():
    buffer = TokenBuffer()
    buffer.append(tokens(0, 5))
    buffer.clear()
    assert (len(buffer), buffer.num_bytes) == (0, 0)
