"""What headers say of a weight."""

from __future__ import annotations

import pytest

from quantdock.configs.stored import WEIGHT_SCALES, StoredWeight, read_weight, stored_weights
from quantdock.formats import QuantSpec
from quantdock.schemes import LayerFacts, StoredTensor

TENSOR = QuantSpec(element="fp8_e4m3")
CHANNEL = QuantSpec(element="fp8_e4m3", rows=1)
BLOCK = QuantSpec(element="fp8_e4m3", rows=128, cols=128)


def tensor(dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape)


def weight(
    shape: tuple[int, ...], dtype: str = "float8_e4m3fn", /, **beside: StoredTensor
) -> StoredWeight:
    return StoredWeight(name="a.b", weight=tensor(dtype, *shape), beside=beside)


@pytest.mark.parametrize("name", WEIGHT_SCALES)
def test_every_spelling_of_the_scale_is_found(name: str) -> None:
    assert read_weight(weight((256, 256), **{name: tensor("float32", 2, 2)}), [BLOCK]).spec == BLOCK


@pytest.mark.parametrize(
    ("shape", "specs", "expected"),
    [
        ((), [TENSOR, CHANNEL], TENSOR),
        ((1,), [TENSOR, CHANNEL], TENSOR),
        ((128,), [TENSOR, CHANNEL], CHANNEL),
        ((128, 1), [TENSOR, CHANNEL], CHANNEL),
        ((1, 2), [BLOCK, TENSOR, CHANNEL], BLOCK),
        ((1, 1, 2, 1), [BLOCK, TENSOR, CHANNEL], BLOCK),
        ((128, 1), [BLOCK, TENSOR, CHANNEL], CHANNEL),
    ],
)
def test_number_of_scales_chooses_the_tile(
    shape: tuple[int, ...], specs: list[QuantSpec], expected: QuantSpec
) -> None:
    stored = weight((128, 256), weight_scale=tensor("bfloat16", *shape))
    assert read_weight(stored, specs).spec == expected


def test_experts_in_one_tensor_have_their_scales_each() -> None:
    stored = weight((4, 192, 256), weight_scale_inv=tensor("float32", 4, 2, 2))
    assert read_weight(stored, [BLOCK, TENSOR]).spec == BLOCK


def test_impossible_number_of_scales_says_both_numbers() -> None:
    stored = weight((128, 256), weight_scale=tensor("float32", 127, 1))
    assert read_weight(stored, [TENSOR, CHANNEL, BLOCK]).error == (
        "a.b.weight_scale has 127 elements, shape [127, 1]; expected 1 (one a tensor) or "
        "128 (one a row) or 2 (one a 128 x 128 block)"
    )


def test_element_is_what_is_stored() -> None:
    scale = tensor("float32")
    assert read_weight(weight((8, 8), "float8_e5m2", scale=scale), [TENSOR]).spec == QuantSpec(
        element="fp8_e5m2"
    )
    assert read_weight(weight((8, 8), "uint8", scale=scale), [TENSOR]).spec == TENSOR


def test_plain_weight_is_no_error_and_has_no_spec() -> None:
    reading = read_weight(weight((8, 8), "bfloat16"), [TENSOR])
    assert (reading.spec, reading.error) == (None, "")


@pytest.mark.parametrize(
    ("dtype", "beside", "text"),
    [
        ("int8", {}, "a.b.weight is stored as int8, which is not fp8"),
        (
            "bfloat16",
            {"weight_scale": tensor("float32")},
            "a.b.weight is stored as bfloat16 beside weight_scale, which is not fp8",
        ),
        (
            "float8_e4m3fn",
            {"input_scale": tensor("float32")},
            "a.b.weight is stored as float8_e4m3fn and its scale is missing: none of "
            "weight_scale, weight_scale_inv, scale, scale_inv, qscale_weight stands beside it",
        ),
    ],
)
def test_what_cannot_be_read_is_named(
    dtype: str, beside: dict[str, StoredTensor], text: str
) -> None:
    assert read_weight(weight((8, 8), dtype, **beside), [TENSOR]).error == text


def test_parts_of_a_layer_have_their_own_names() -> None:
    plain = tensor("bfloat16", 8, 8)
    fused = LayerFacts(prefix="a.qkv_proj", stored={"q_proj.weight": plain, "v_proj.weight": plain})
    assert [stored.name for stored in stored_weights(fused)] == ["a.q_proj", "a.v_proj"]
    experts = LayerFacts(prefix="a.experts", kind="experts", stored={"0.up_proj.weight": plain})
    assert [stored.name for stored in stored_weights(experts)] == ["a.experts.0.up_proj"]
    own = LayerFacts(prefix="a.b", stored={"weight": plain, "bias": tensor("bfloat16", 8)})
    assert [stored.name for stored in stored_weights(own)] == ["a.b"]
    assert stored_weights(LayerFacts(prefix="a.b")) == ()
    assert stored_weights(LayerFacts(prefix="a.b", stored={})) == ()
