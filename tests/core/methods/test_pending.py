"""PendingWeights: what a slot takes, what it refuses, and what may not be decoded."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import LoadError
from quantdock.methods.pending import PendingWeights
from quantdock.methods.slot import Slot

WEIGHT = Slot(name="weight", shapes=((4, 8),), dtypes=("float8_e4m3fn",))
SCALE = Slot(
    name="weight_scale",
    shapes=((1, 1), (), (1,)),
    dtypes=("float32", "bfloat16"),
    aliases=("weight_scale_inv",),
)
OPTIONAL = Slot(name="input_scale", shapes=((1,), ()), dtypes=("float32",), default=1.0)


def pending(shards=1):
    return PendingWeights("layer", [(WEIGHT, SCALE, OPTIONAL)] * shards)


def weight():
    return torch.zeros(4, 8).to(torch.float8_e4m3fn)


def test_shapes_of_equal_count_arrive_in_the_first_shape():
    slots = pending()
    slots.add("weight", weight())
    slots.add("weight_scale_inv", torch.tensor(0.25))
    (stored,) = slots.take()
    assert stored["weight_scale"].tolist() == [[0.25]]


def test_defaults_stand_for_what_did_not_arrive():
    slots = pending()
    slots.add("weight", weight())
    slots.add("weight_scale", torch.ones(1))
    assert slots.take()[0]["input_scale"].tolist() == [1.0]


def test_missing_tensors_are_named_with_their_shard_and_spellings():
    slots = pending(shards=2)
    slots.add("weight", weight(), shard=0)
    slots.add("weight", weight(), shard=1)
    slots.add("weight_scale", torch.ones(1), shard=0)
    with pytest.raises(LoadError) as caught:
        slots.take()
    assert "missing layer.weight_scale of shard 1" in str(caught.value)
    assert "weight_scale_inv" in str(caught.value)


def test_taking_forgets():
    slots = pending()
    slots.add("weight", weight())
    slots.add("weight_scale", torch.ones(1))
    slots.take()
    assert slots.is_empty
    with pytest.raises(LoadError):
        slots.take()


def test_a_wrong_shape_is_told_beside_the_right_one():
    with pytest.raises(LoadError, match=r"weight_scale is \[127\], not \[1, 1\]"):
        pending().add("weight_scale", torch.ones(127))


def test_wrong_dtype_is_not_cast():
    with pytest.raises(LoadError, match="is float32, not float8_e4m3fn"):
        pending().add("weight", torch.zeros(4, 8))


def test_unknown_slot_lists_the_known():
    with pytest.raises(LoadError, match="it takes weight, weight_scale, input_scale"):
        pending().add("qweight", torch.zeros(1))
