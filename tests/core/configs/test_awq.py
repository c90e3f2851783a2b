"""awq: its JSON under every spelling (S11), its layouts, and what headers say against them."""

from __future__ import annotations

import pytest
import torch

from packed_layers import PREFIX, facts_of
from quantdock.configs.awq import AWQConfig
from quantdock.configs.awq_codes import encode_awq
from quantdock.errors import ConfigError
from quantdock.formats import parse_spec
from quantdock.numerics import quantize_weight
from quantdock.schemes import LayerFacts, StoredTensor

BLOCK = {"bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
VERSIONS = ("gemm", "gemv", "gemv_fast")


def config(**fields):
    return AWQConfig.from_config({**BLOCK, **fields})


def decide(read, prefix=PREFIX, **facts):
    return read.scheme_for(LayerFacts(prefix=prefix, **facts))


def tensors(version="gemm", spec="uint4[1x32]:zero", n=64, k=128):
    return encode_awq(quantize_weight(torch.randn(n, k), parse_spec(spec)), version)


@pytest.mark.parametrize(
    "block",
    [
        BLOCK | {"version": "GEMM", "modules_to_not_convert": None},
        {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "gemm"},
        {"bits": 4, "group_size": 128, "format": "gemm", "pack_dtype": "int32", "lm_head": False},
    ],
)
def test_s11_every_spelling_is_the_same_scheme(block):
    read = AWQConfig.from_config(block)
    decision = decide(read)
    assert (str(decision.scheme), read.version) == ("uint4[1x128]:zero", "gemm")
    assert decision.source == ("bits = 4, group_size = 128, zero_point = True, version = 'gemm'")
    assert decide(read, "lm_head", kind="head").kind == "unquantized"


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"zero_point": False}, "int4[1x128]"),
        ({"zero_point": None}, "uint4[1x128]:zero"),
        ({"group_size": -1}, "uint4[1x*]:zero"),
        ({"group_size": 32, "zero_point": False}, "int4[1x32]"),
    ],
)
def test_the_words_of_a_block_are_a_scheme(fields, spec):
    assert str(decide(config(**fields)).scheme) == spec


@pytest.mark.parametrize(
    ("word", "version"),
    [("GEMV", "gemv"), ("gemv_fast", "gemv_fast"), ("GEMVFast", "gemv_fast"), (None, "gemm")],
)
def test_versions_are_known_in_any_case(word, version):
    assert config(version=word).version == version


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bits": 8}, "awq: bits is 8.\n  allowed: 4"),
        ({"bits": None, "w_bit": 3}, "awq: w_bit is 3"),
        ({"group_size": 0}, "awq: group_size is 0"),
        ({"zero_point": "no"}, "awq: zero_point is 'no'"),
        ({"version": "marlin"}, "version is 'marlin'.\n  other words name the layout of one kern"),
        ({"version": "gemx"}, "version is 'gemx'.\n.*\n  allowed: 'gemm', 'gemv', 'gemv_fast'"),
        ({"backend": "llm-awq"}, "backend is 'llm-awq'.\n  llm-awq packs its words in an order"),
        ({"desc_act": True}, "desc_act is True.\n  AWQ stores no index"),
        ({"pack_dtype": "int64"}, "pack_dtype is 'int64'"),
    ],
)
def test_an_impossible_value_names_field_and_value(fields, text):
    with pytest.raises(ConfigError, match=text):
        config(**fields)


def test_layers_that_are_listed_are_left_as_they_are():
    read = config(modules_to_not_convert=["visual", "mlp.gate"])
    assert decide(read, "visual.blocks.0.attn.qkv").kind == "unquantized"
    assert (
        decide(read, "model.layers.0.mlp.gate").source == "modules_to_not_convert[1] = 'mlp.gate'"
    )
    assert decide(read, "model.layers.0.mlp.gate_proj").scheme
    assert read.unmatched() == ()


def test_a_quantized_head_is_one_that_is_stored_or_said():
    facts = facts_of(tensors(spec="uint4[1x128]:zero"), "lm_head")
    assert decide(config(), "lm_head", kind="head", stored=facts.stored).scheme
    assert decide(config(lm_head=True), "lm_head", kind="head").scheme


def test_s37_a_plain_weight_is_plain_whatever_the_list_says():
    read = config()
    stored = {"weight": StoredTensor(dtype="float16", shape=(4304, 1152))}
    for layer in range(2):
        decision = decide(read, f"vpm.layers.{layer}.mlp.fc1", stored=stored)
        assert decision.because == "the file stores it as float16"
    assert read.notes() == (
        "vpm.layers.*.mlp.fc1 is stored as float16, though no entry leaves it out; "
        "the stored tensors decide",
    )


@pytest.mark.parametrize("version", VERSIONS)
class TestHeaders:
    """Shapes and dtypes against group size and layout, in numbers."""

    def test_the_shape_of_a_weight_is_that_of_its_words(self, version):
        read, facts = config(version=version, group_size=32), facts_of(tensors(version))
        scheme = read.scheme_for(facts).scheme
        assert read.weight_shape(scheme, facts) == (64, 128)
        assert read.weight_shape(scheme, LayerFacts(prefix=PREFIX)) == ()

    def test_a_wrong_group_size_names_the_one_that_fits(self, version):
        stored = tensors(version, "uint4[1x128]:zero", k=2048)
        decision = config(version=version, group_size=32).scheme_for(facts_of(stored))
        assert decision.error and "(they fit bits = 4, group_size = 128" in decision.because

    def test_a_group_that_does_not_divide_k(self, version):
        decision = config(version=version, group_size=96).scheme_for(facts_of(tensors(version)))
        assert "qweight is of K = 128, not a multiple of 96" in decision.because

    def test_another_layout_does_not_fit(self, version):
        other = "gemv" if version == "gemm" else "gemm"
        decision = config(version=version, group_size=32).scheme_for(facts_of(tensors(other)))
        assert decision.error and decision.source.endswith(f"version = '{version}'")

    def test_zero_points_of_another_width(self, version):
        stored = tensors(version)
        stored["qzeros"] = stored["qzeros"][:, 1:].contiguous()
        decision = config(version=version, group_size=32).scheme_for(facts_of(stored))
        assert f"{PREFIX}.qzeros is {list(stored['qzeros'].shape)}, not" in decision.because
