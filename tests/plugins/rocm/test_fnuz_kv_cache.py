"""Keys and values in fnuz: the same real numbers, from codes whose bits mean half as much."""

from __future__ import annotations

import pytest
import torch

from quantdock.configs.fp8 import Fp8Config
from quantdock.kv_cache import KVCodec, KVScale
from quantdock.plan.kv_cache import decide_kv_cache
from quantdock.schemes import KVCacheSpec
from quantdock_rocm.fnuz_configs import Fp8FnuzConfig, Fp8PerTensorFnuzConfig

BLOCK = {"kv_cache_quant_algo": "FP8"}
HERE, ELSEWHERE = Fp8FnuzConfig.from_config(BLOCK), Fp8Config.from_config(BLOCK)


def codec(config, stored):
    spec = config.kv_cache_spec()
    return KVCodec(spec.element, KVScale.of(config.decode_kv_scale(stored, spec)))


def test_the_promise_is_kept_in_fnuz():
    assert str(HERE.kv_cache_spec()) == "fp8_e4m3fnuz[tensor]"
    assert str(ELSEWHERE.kv_cache_spec()) == "fp8_e4m3[tensor]"


def test_values_are_the_same_and_so_are_the_bits():
    stored = torch.tensor(0.02)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x = (every[every.isfinite()] * stored).view(1, 1, 1, -1)
    ours, theirs = codec(HERE, stored), codec(ELSEWHERE, stored)
    codes, _ = ours.encode(x)
    others, _ = theirs.encode(x)
    assert codes.dtype == torch.float8_e4m3fnuz
    assert torch.equal(ours.decode(codes, None, x.dtype), theirs.decode(others, None, x.dtype))
    differ = codes.view(torch.uint8) != others.view(torch.uint8)
    assert torch.equal(differ, others.view(torch.uint8) == 0x80), "only -0 has other bits"


def test_only_what_is_exchanged_has_another_scale():
    stored = torch.tensor(0.5)
    for element, expected in (("fp8_e4m3fnuz", 1.0), ("int8", 0.5), ("fp8_e5m2", 0.5)):
        assert HERE.decode_kv_scale(stored, KVCacheSpec(element=element)).item() == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [("fp8", "fp8_e4m3fnuz[token]:dynamic"), ("int8", "int8[token]:dynamic")],
)
def test_a_user_gets_the_platforms_element(word, expected):
    assert str(decide_kv_cache(word, Fp8PerTensorFnuzConfig.online()).spec) == expected


def test_the_files_scales_serve_a_user_who_asks_for_the_same():
    decision = decide_kv_cache("fp8", HERE)
    assert (str(decision.spec), decision.from_file) == ("fp8_e4m3fnuz[tensor]", True)
