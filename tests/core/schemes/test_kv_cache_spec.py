"""What a cache's spec says of itself, and the words for its elements."""

from __future__ import annotations

import pytest

from quantdock.errors import FormatError
from quantdock.schemes import KVCacheSpec, parse_kv_element
from quantdock.schemes.kv_cache_spec import NVFP4


@pytest.mark.parametrize(
    ("element", "granularity", "text", "size", "dynamic"),
    [
        ("fp8_e4m3", "tensor", "fp8_e4m3[tensor]", 512, False),
        ("fp8_e5m2", "head", "fp8_e5m2[head]", 512, False),
        ("int8", "token", "int8[token]:dynamic", 544, True),
        ("fp8_e4m3fnuz", "token", "fp8_e4m3fnuz[token]:dynamic", 544, True),
    ],
)
def test_text_and_bytes(element, granularity, text, size, dynamic):
    spec = KVCacheSpec(element=element, granularity=granularity)
    assert str(spec) == text
    assert spec.bytes_per_token(heads=4, width=64 + 64) == size
    assert spec.dynamic is dynamic
    assert spec.is_float is (element != "int8")


@pytest.mark.parametrize("fields", [{"element": "int4"}, {"element": "int8", "granularity": "row"}])
def test_impossible_specs_are_refused(fields):
    with pytest.raises(FormatError, match=r"No KV cache is kept as int\d\[(tensor|row)\]"):
        KVCacheSpec(**fields)


def test_two_levels_are_static_above_groups_and_belong_to_nothing_else():
    assert str(NVFP4) == "fp4_e2m1[group]:second[tensor]" and not NVFP4.dynamic
    assert NVFP4.bytes_per_token(heads=4, width=64 + 64) == 4 * (64 + 8)
    with pytest.raises(FormatError, match="No KV cache is kept as fp8_e4m3"):
        KVCacheSpec(element="fp8_e4m3", has_second=True)


@pytest.mark.parametrize(
    ("word", "element"),
    [
        ("fp8", "fp8_e4m3"),
        (" FP8_E4M3 ", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("INT8", "int8"),
        ("nvfp4", None),
        ("auto", None),
    ],
)
def test_words(word, element):
    assert parse_kv_element(word) == element
