"""The table of what becomes of keys and values: user, checkpoint, stored scales."""

from __future__ import annotations

import pytest

from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import ConfigError
from quantdock.plan.kv_cache import decide_kv_cache

SILENT: dict[str, object] = {}
PROMISE = {"kv_cache_quant_algo": "FP8"}
OTHER = {"kv_cache_quant_algo": "NVFP4_AFFINE"}
NVFP4 = {"kv_cache_quant_algo": "NVFP4"}
TOKEN = "[token]:dynamic"


@pytest.mark.parametrize(
    ("asked", "block", "has_scales", "spec", "from_file"),
    [
        ("auto", SILENT, False, None, False),
        ("auto", SILENT, True, "fp8_e4m3[tensor]", True),
        ("auto", PROMISE, False, "fp8_e4m3[tensor]", True),
        ("auto", PROMISE, True, "fp8_e4m3[tensor]", True),
        ("auto", OTHER, True, None, False),
        ("auto", NVFP4, True, "fp4_e2m1[group]:second[tensor]", True),
        ("fp4", NVFP4, True, "fp4_e2m1[group]:second[tensor]", True),
        ("fp4", PROMISE, True, "fp4_e2m1[group]:dynamic", False),
        ("fp8", NVFP4, True, f"fp8_e4m3{TOKEN}", False),
        ("none", PROMISE, True, None, False),
        ("fp8", SILENT, False, f"fp8_e4m3{TOKEN}", False),
        ("fp8", SILENT, True, "fp8_e4m3[tensor]", True),
        ("fp8", PROMISE, True, "fp8_e4m3[tensor]", True),
        ("fp8", OTHER, True, f"fp8_e4m3{TOKEN}", False),
        ("int8", PROMISE, True, f"int8{TOKEN}", False),
        ("fp8_e5m2", PROMISE, True, f"fp8_e5m2{TOKEN}", False),
    ],
)
def test_the_table(asked, block, has_scales, spec, from_file):
    decision = decide_kv_cache(asked, Fp8Config.from_config(block), has_scales=has_scales)
    assert (decision.spec and str(decision.spec)) == spec
    assert decision.from_file is from_file
    assert decision.because and decision.source


def test_none_on_a_file_that_promises_says_so():
    decision = decide_kv_cache("none", Fp8Config.from_config(PROMISE))
    assert decision.because == (
        "the user asked for no quantized KV cache, although the checkpoint asks for keys and "
        "values in fp8"
    )
    assert decision.source == "kv_cache = 'none'"


def test_a_decoded_checkpoint_keeps_no_codes_unless_asked():
    config = Fp8Config.from_config(PROMISE)
    decision = decide_kv_cache("auto", config, decodes=True)
    assert decision.spec is None and decision.source == "quantization = 'none'"
    assert decide_kv_cache("fp8", config, decodes=True).from_file


def test_another_word_is_refused_with_all_that_are_known():
    with pytest.raises(ConfigError, match=r"kv_cache='fp9'.*\n  known: auto, none, fp8, fp8_e5m2"):
        decide_kv_cache("fp9", Fp8Config())
