"""Every spelling of what a block says of keys and values; S33 for words and objects."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.fbgemm_fp8 import FbgemmFp8Config
from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.configs.w8a8_fp8 import W8A8Fp8Config
from quantdock.errors import ConfigError
from quantdock.schemes import UNSTATED

FLOAT8 = {"type": "float", "num_bits": 8}


@pytest.mark.parametrize(
    ("block", "spec"),
    [
        ({"kv_cache_quant_algo": "FP8"}, "fp8_e4m3[tensor]"),
        ({"kv_cache_quant_algo": "INT8"}, "int8[tensor]"),
        ({"kv_cache_quant_algo": "NVFP4"}, "fp4_e2m1[group]:second[tensor]"),
        ({"kv_cache_scheme": "NVFP4"}, "fp4_e2m1[group]:second[tensor]"),
        ({"kv_cache_scheme": "FP8"}, "fp8_e4m3[tensor]"),
        ({"kv_cache_scheme": "fp8_e5m2"}, "fp8_e5m2[tensor]"),
        ({"kv_cache_scheme": FLOAT8}, "fp8_e4m3[tensor]"),
        ({"kv_cache_scheme": {**FLOAT8, "dynamic": False, "strategy": "tensor"}}, "fp8_e4m3[tenso"),
        ({"kv_cache_scheme": {**FLOAT8, "strategy": "attn_head"}}, "fp8_e4m3[head]"),
        ({"kv_cache_scheme": {**FLOAT8, "strategy": "token"}}, "fp8_e4m3[token]:dynamic"),
        ({"kv_cache_scheme": {**FLOAT8, "dynamic": True}}, "fp8_e4m3[token]:dynamic"),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, "int8[tensor]"),
        ({"kv_cache_quant_algo": None, "kv_cache_scheme": "FP8"}, "fp8_e4m3[tensor]"),
    ],
)
def test_what_is_asked_for(block: dict[str, Any], spec: str) -> None:
    decision = read_kv_cache(Fields(block, "fp8"))
    assert str(decision.spec).startswith(spec)
    assert decision.from_file
    assert decision.source in block


@pytest.mark.parametrize("block", [{}, {"kv_cache_scheme": None}, {"kv_cache_quant_algo": "auto"}])
def test_nothing_is_asked_for(block: dict[str, Any]) -> None:
    assert read_kv_cache(Fields(block, "fp8")) is UNSTATED


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("NVFP4_AFFINE", "nvfp4_affine"),
        ({"type": "float", "num_bits": 4}, "float4"),
        ({**FLOAT8, "symmetric": False}, "float8 with zero points"),
        ({**FLOAT8, "strategy": "group"}, "float8 by group"),
        ({**FLOAT8, "strategy": "group", "dynamic": True}, "float8 by group"),
    ],
)
def test_what_is_known_and_not_kept_has_a_reason(value: object, word: str) -> None:
    decision = read_kv_cache(Fields({"kv_cache_scheme": value}, "fp8"))
    assert decision.spec is None
    because = f"the checkpoint asks for keys and values in {word}, which this release does not keep"
    assert decision.because == because


@pytest.mark.parametrize("value", [8, ["FP8"], {"num_bits": 8}])
def test_impossible_values_are_refused(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"kv_cache_scheme is .*\n  allowed: a word such as 'FP8'"
    ):
        read_kv_cache(Fields({"kv_cache_scheme": value}, "fp8"))


@pytest.mark.parametrize("kind", [Fp8Config, FbgemmFp8Config, Mxfp8Config, W8A8Fp8Config])
def test_every_fp8_config_reads_it(kind: type[Fp8Config]) -> None:
    config = kind.from_config({"kv_cache_quant_algo": "FP8"})
    assert str(config.kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert config.extra == {}


def test_a_16_bit_checkpoint_asks_for_nothing() -> None:
    assert Fp8Config.online().kv_cache_spec() is None
