"""Stores of keys or values: growing ones and fixed ones say the same."""

from __future__ import annotations

import pytest
import torch

from quantdock.kv_cache import FixedStore, KVCodec, KVScale, TokenStore

CODECS = {
    "static": lambda: KVCodec("fp8_e4m3", KVScale.of(torch.tensor(0.25))),
    "heads": lambda: KVCodec("fp8_e5m2", KVScale.of(torch.tensor([0.25, 0.5]))),
    "dynamic": lambda: KVCodec("int8"),
}


def states(count, seed=0, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, count, 8, generator=generator)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_pieces_read_as_the_whole(codec):
    x = states(20)
    whole, pieces = TokenStore(codec()), TokenStore(codec())
    whole.append(x)
    for piece in x.split([1, 7, 0, 12], dim=2):
        pieces.append(piece)
    assert len(pieces) == 20
    assert torch.equal(pieces.read(), whole.read())
    assert torch.equal(pieces.read(last=3), whole.read()[:, :, -3:])
    fixed = FixedStore(codec(), x, capacity=32)
    fixed.write(torch.arange(20), x)
    assert torch.equal(fixed.read()[:, :, :20], whole.read())
    assert torch.equal(fixed.read()[:, :, 20:], torch.zeros(2, 2, 12, 8))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_dropping_selecting_and_going_on(codec):
    x = states(10)
    store = TokenStore(codec())
    store.append(x)
    expected = store.read()
    store.drop_last(2)
    store.keep_last(5)
    store.change(lambda memory: memory[[1]])
    assert torch.equal(store.read(), expected[[1], :, 3:8])
    store.append(x[[1], :, 8:])
    assert torch.equal(store.read(), expected[[1], :, 3:])


def test_bytes_are_one_a_code_and_four_a_scale():
    static, dynamic = TokenStore(CODECS["static"]()), TokenStore(KVCodec("int8"))
    for store in (static, dynamic):
        store.append(states(1000))
    room = 1 + 64 / 1000
    assert static.num_bytes == 2 * 2 * 1000 * 8 * room
    assert dynamic.num_bytes == 2 * 2 * 1000 * (8 + 4) * room


def test_a_nan_is_seen_after_more_tokens_came():
    store = TokenStore(CODECS["static"]())
    x = states(3)
    x[0, 0, 1, 0] = float("nan")
    store.append(x)
    store.append(states(4))
    assert store.read().isnan().nonzero().tolist() == [[0, 0, 1, 0]]
    store.clear()
    store.append(states(4))
    assert store.read().isfinite().all()


def test_what_is_read_has_the_dtype_of_what_came():
    store = TokenStore(CODECS["static"]())
    store.append(states(3).to(torch.bfloat16))
    assert store.read().dtype == torch.bfloat16


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_fixed_store_keeps_its_addresses(codec):
    x = states(4)
    store = FixedStore(codec(), x, capacity=8)
    addresses = [memory.data_ptr() for memory in store.memories()]
    store.write(torch.arange(4), x)
    expected = store.read()
    store.change(lambda memory: memory[[1, 0]])
    assert torch.equal(store.read(), expected[[1, 0]])
    store.clear()
    assert not store.read().any()
    assert [memory.data_ptr() for memory in store.memories()] == addresses
    assert store.num_bytes == sum(memory.nbytes for memory in store.memories())
