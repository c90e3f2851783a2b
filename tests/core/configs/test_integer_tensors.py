"""Slots of integer layers: with and without headers; what the headers show."""

from __future__ import annotations

import pytest

from quantdock.configs.integer_tensors import WORDS, integer_slots, misfit, stored_shape
from quantdock.formats import parse_spec
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, StoredTensor, parse_scheme


def slots(scheme: str, codes: str, stored: dict[str, StoredTensor] | None = None) -> list[Slot]:
    facts = LayerFacts(prefix="a.q_proj", stored=stored)
    return list(integer_slots(parse_scheme(scheme), 48, 128, facts, codes))


def shapes(found: list[Slot]) -> dict[str, tuple[int, ...]]:
    return {slot.name: slot.shape for slot in found}


@pytest.mark.parametrize(
    ("scheme", "codes", "expected"),
    [
        ("int8[1x*]", "weight", {"weight": (48, 128), "weight_scale": (48, 1)}),
        ("int8[64x64]", "weight", {"weight": (48, 128), "weight_scale_inv": (1, 2)}),
        (
            "uint3[1x32]:zero:act-order",
            WORDS,
            {
                "weight_packed": (48, 12),
                "weight_shape": (2,),
                "weight_scale": (48, 4),
                "weight_zero_point": (5, 4),
                "weight_g_idx": (128,),
            },
        ),
        (
            "uint8[1x*]:zero x int8[*x*]:zero",
            "weight",
            {
                "weight": (48, 128),
                "weight_scale": (48, 1),
                "weight_zero_point": (48, 1),
                "input_scale": (1,),
                "input_zero_point": (1,),
            },
        ),
    ],
)
def test_without_headers_what_the_scheme_needs_is_asked_for(
    scheme: str, codes: str, expected: dict[str, tuple[int, ...]]
) -> None:
    found = slots(scheme, codes)
    assert shapes(found) == expected
    assert all(slot.default is None for slot in found)


def test_headers_show_loose_words_and_what_else_is_stored() -> None:
    """The parts of a fused layer are stored under their own names."""
    stored = {
        "q_proj.weight_packed": StoredTensor(dtype="int32", shape=(48, 13)),
        "q_proj.weight_zero_point": StoredTensor(dtype="int8", shape=(48, 4)),
        "q_proj.weight_g_idx": StoredTensor(dtype="int32", shape=(128,)),
        "q_proj.input_scale": StoredTensor(dtype="float32", shape=(1,)),
    }
    found = slots("int3[1x32]", WORDS, stored)
    assert shapes(found) == {
        "weight_packed": (48, 13),
        "weight_shape": (2,),
        "weight_scale": (48, 4),
        "weight_zero_point": (48, 4),
        "weight_g_idx": (128,),
        "input_scale": (1,),
    }
    assert found[-1].default == 1.0


def test_the_shape_is_told_by_groups_or_by_words() -> None:
    packed = {"weight_packed": StoredTensor(dtype="int32", shape=(48, 13))}
    scale = {"weight_scale": StoredTensor(dtype="float32", shape=(48, 4))}
    assert stored_shape(parse_spec("int3[1x32]"), packed | scale, WORDS) == (48, 128)
    assert stored_shape(parse_spec("int4[1x*]"), packed, WORDS) == (48, 104)
    assert stored_shape(parse_spec("int4[1x*]"), {}, WORDS) == ()
    flat = {"weight_packed": StoredTensor(dtype="int32", shape=(48,))}
    assert stored_shape(parse_spec("int4[1x*]"), flat, WORDS) == ()
    found = misfit(parse_scheme("int4[1x*]"), flat, WORDS)
    assert found is not None
    assert found.told("a").startswith("a.weight_packed is [48], not a matrix, as num_bits = 4")
