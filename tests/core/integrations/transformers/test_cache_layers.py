"""Cache layers of codes against transformers' own, on values that codes hold exactly."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from quantdock.integrations.transformers.cache_layers import (
    QuantizedLayer,
    QuantizedSlidingLayer,
    QuantizedStaticLayer,
    QuantizedStaticSlidingLayer,
)
from quantdock.kv_cache import KVCodec, KVScale

torch.set_num_threads(1)

WINDOW = 5


def codecs():
    return tuple(KVCodec("fp8_e4m3", KVScale.of(torch.tensor(s))) for s in (0.5, 0.25))


PAIRS = {
    "growing": lambda: (QuantizedLayer(codecs()), DynamicLayer()),
    "sliding": lambda: (QuantizedSlidingLayer(codecs(), WINDOW), DynamicSlidingWindowLayer(WINDOW)),
    "static": lambda: (QuantizedStaticLayer(codecs(), 32), StaticLayer(32)),
    "static sliding": lambda: (
        QuantizedStaticSlidingLayer(codecs(), 32, WINDOW),
        StaticSlidingWindowLayer(32, WINDOW),
    ),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    """Return a layer of codes and transformers' own of the same kind."""
    return PAIRS[request.param]()


def states(count, seed, batch=2):
    """Return keys and values of ``count`` tokens, whole numbers that both scales hold."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, 2, count, 4)
    return [torch.randint(-7, 8, shape, generator=generator).float() for _ in range(2)]


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def step(layers, count, seed, batch=2):
    new = states(count, seed, batch)
    masks = [layer.get_mask_sizes(count) for layer in layers]
    assert masks[0] == masks[1]
    ours, theirs = (layer.update(*new) for layer in layers)
    assert equal(ours, theirs)
    assert int(layers[0].get_seq_length()) == int(layers[1].get_seq_length())


def test_prompt_and_tokens_are_those_of_a_plain_layer(pair):
    assert pair[0].get_seq_length() == 0 and pair[0].keys is None
    for seed, count in enumerate((3, 1, 1, 4, 1, 7, 1)):
        step(pair, count, seed)
    assert equal((pair[0].keys, pair[0].values), (pair[1].keys, pair[1].values))
    assert pair[0].get_max_length() == pair[1].get_max_length()


def test_beams_are_reordered(pair):
    step(pair, 6, 0)
    for layer in pair:
        layer.reorder_cache(torch.tensor([1, 1]))
    assert torch.equal(pair[0].keys[0], pair[0].keys[1])
    step(pair, 1, 1)


@pytest.mark.parametrize("kind", ["growing", "sliding"])
def test_batches_are_repeated_and_selected(kind):
    pair = PAIRS[kind]()
    step(pair, 6, 0)
    for layer in pair:
        layer.batch_repeat_interleave(2)
    step(pair, 1, 1, batch=4)
    for layer in pair:
        layer.batch_select_indices(torch.tensor([3, 0, 1]))
    step(pair, 1, 2, batch=3)


def test_tokens_are_taken_back():
    pair = PAIRS["growing"]()
    step(pair, 9, 0)
    for removed in (0, -3, -1):
        for layer in pair:
            layer.crop(removed)
        step(pair, 2, 1)
    pair[0].crop(4)
    assert pair[0].get_seq_length() == 4, "a positive number says how many stay"


def test_tokens_are_taken_back_in_a_window():
    pair = PAIRS["sliding"]()
    step(pair, 3, 0)
    for layer in pair:
        layer.crop(-1)
    step(pair, 6, 1)
    with pytest.raises(RuntimeError, match="activate_past_recording"):
        pair[0].crop(-1)


def test_a_window_that_records_can_go_back():
    pair = PAIRS["sliding"]()
    for layer in pair:
        layer.activate_past_recording()
    step(pair, 4, 0)
    for seed, removed in enumerate((0, -2, -1, -3)):
        step(pair, 5, seed)
        for layer in pair:
            layer.crop(removed)
        assert torch.equal(pair[0].keys, pair[1].keys)
    with pytest.raises(RuntimeError, match="negative"):
        pair[0].crop(2)


def test_an_emptied_layer_begins_anew(pair):
    step(pair, 4, 0)
    pair[0].reset()
    again = PAIRS_OF[type(pair[0])]()
    assert pair[0].get_seq_length() == 0
    new = states(3, 5)
    assert equal(pair[0].update(*new), again.update(*new))


PAIRS_OF = {
    QuantizedLayer: lambda: DynamicLayer(),
    QuantizedSlidingLayer: lambda: DynamicSlidingWindowLayer(WINDOW),
    QuantizedStaticLayer: lambda: StaticLayer(32),
    QuantizedStaticSlidingLayer: lambda: StaticSlidingWindowLayer(32, WINDOW),
}


def test_a_copy_is_its_own(pair):
    step(pair, 4, 0)
    copied = copy.deepcopy(pair[0])
    before = pair[0].keys
    copied.update(*states(2, 3))
    assert torch.equal(pair[0].keys, before)


def test_everything_moves_and_comes_back():
    ours, theirs = PAIRS["growing"]()
    step((ours, theirs), 4, 0)
    ours.offload()
    ours.prefetch()
    step((ours, theirs), 1, 1)


def test_keys_and_values_may_be_of_different_width():
    layer = QuantizedLayer((KVCodec("int8"), KVCodec("int8")))
    keys, values = layer.update(torch.ones(1, 2, 3, 24), torch.ones(1, 2, 3, 16))
    assert (keys.shape, values.shape) == ((1, 2, 3, 24), (1, 2, 3, 16))
    assert layer.num_bytes < 2 * 3 * (24 + 16 + 8) * (1 + 64 / 3) + 1


@pytest.mark.parametrize("first", [1, 4, 5, 6, 9])
@pytest.mark.parametrize("then", [1, 2, 7])
def test_a_static_window_fills_and_slides_as_a_plain_one(first, then):
    layers = PAIRS["static sliding"]()
    step(layers, first, 0)
    for seed in range(1, 7):
        step(layers, then, seed)
    assert equal((layers[0].keys, layers[0].values), (layers[1].keys, layers[1].values))


def test_a_static_window_keeps_the_scale_of_each_token():
    layer = QuantizedStaticSlidingLayer((KVCodec("int8"), KVCodec("fp8_e4m3")), 32, WINDOW)
    plain = QuantizedSlidingLayer((KVCodec("int8"), KVCodec("fp8_e4m3")), WINDOW)
    for seed, count in enumerate((7, 1, 3, 1)):
        new = [x * 1.37**seed for x in states(count, seed)]
        assert equal(layer.update(*new), plain.update(*new))


@pytest.mark.parametrize(
    "layer",
    [QuantizedStaticLayer(codecs(), 8), QuantizedStaticSlidingLayer(codecs(), 8, 3)],
    ids=["static", "static sliding"],
)
def test_a_static_layer_keeps_its_addresses(layer):
    layer.update(*states(3, 0))
    addresses = [m.data_ptr() for store in layer._stores for m in store.memories()]
    layer.update(*states(1, 1))
    layer.reset()
    layer.reorder_cache(torch.tensor([1, 0]))
    assert [m.data_ptr() for store in layer._stores for m in store.memories()] == addresses
    assert layer.is_compileable


def test_a_static_layer_compiles_without_a_break():
    layer = QuantizedStaticLayer((KVCodec("fp8_e4m3"), KVCodec("int8")), 8)
    layer.update(*states(3, 0))
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer.update, fullgraph=True, backend="eager")
    for seed in (1, 2):
        new = states(1, seed)
        assert equal(compiled(*new), plain.update(*new))
