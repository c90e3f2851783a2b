"""gptq: its JSON, overrides and lists, and what headers say against them."""

from __future__ import annotations

import pytest
import torch

from packed_layers import facts_of
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.errors import ConfigError
from quantdock.formats import parse_spec
from quantdock.numerics import quantize_weight
from quantdock.schemes import LayerFacts, StoredTensor

BLOCK = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False}
UP, DOWN, HEAD = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "lm_head"
FLOAT = {"weight": StoredTensor(dtype="float16", shape=(320, 256))}


def config(**fields):
    return GPTQConfig.from_config({**BLOCK, **fields})


def decide(read, prefix=UP, **facts):
    return read.scheme_for(LayerFacts(prefix=prefix, **facts))


def tensors(spec="int4[1x32]", n=64, k=128):
    return encode_gptq(quantize_weight(torch.randn(n, k), parse_spec(spec)))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, "int{}[1x128]"),
        ({"group_size": -1}, "int{}[1x*]"),
        ({"sym": False}, "uint{}[1x128]:zero"),
        ({"desc_act": True}, "int{}[1x128]:act-order"),
        ({"desc_act": True, "group_size": -1}, "int{}[1x*]"),
        ({"sym": None, "desc_act": None}, "uint{}[1x128]:zero"),
    ],
)
def test_the_words_of_a_block_are_a_scheme(bits, fields, spec):
    decision = decide(config(bits=bits, **fields))
    assert (str(decision.scheme), decision.because) == (spec.format(bits), "the checkpoint says so")


def test_tools_add_fields_that_are_kept():
    read = config(damp_percent=0.1, true_sequential=True, static_groups=None, pack_dtype="int32")
    assert read.extra == {"damp_percent": 0.1, "true_sequential": True, "static_groups": None}


@pytest.mark.parametrize(
    ("fields", "v2", "stated"),
    [
        ({}, False, "no format is stated, which is 'gptq'"),
        ({"checkpoint_format": "gptq"}, False, "checkpoint_format = 'gptq'"),
        ({"format": "GPTQ_V2"}, True, "format = 'GPTQ_V2'"),
        ({"checkpoint_format": "gptq_v2", "format": "gptq"}, True, "checkpoint_format = 'gptq_v2'"),
    ],
)
def test_the_version_is_read_under_both_its_names(fields, v2, stated):
    zeros = config(**fields).zeros
    assert (zeros.v2, zeros.stated, zeros.whole_words) == (v2, stated, False)


def test_the_tool_that_subtracts_whole_words_is_known_by_its_name():
    for quantizer in (["gptqmodel:7.7.0"], "GPTQModel:1.0"):
        assert config(meta={"quantizer": quantizer}).zeros.whole_words


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bits": 5}, "gptq: bits is 5.\n  allowed: 2, 3, 4, 8"),
        ({"bits": None}, "gptq: bits is None"),
        ({"group_size": None}, "gptq: group_size is None.\n  allowed: a number of input columns"),
        ({"group_size": 0}, "gptq: group_size is 0"),
        ({"sym": "true"}, "gptq: sym is 'true'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'.\n  other words name the"),
        ({"is_marlin_format": True}, "is_marlin_format is True.\n  the file is in the layout of"),
        ({"pack_dtype": "int8"}, "pack_dtype is 'int8'.\n  qweight is read in words of 32 bits"),
        ({"dynamic": ["x"]}, r"dynamic is \['x'\].\n  allowed: an object, pattern to an object"),
        ({"dynamic": {"x": {"bits": 7}}}, r"gptq: dynamic\['x'\]: bits is 7"),
        (
            {"dynamic": {"(": {}}},
            r"gptq: dynamic\['\('\] is no regular expression\.[\s\S]*beginning of a name",
        ),
        ({"dynamic": {"-:(": {}}}, r"dynamic\['-:\('\] is no regular expression"),
        (
            {"modules_in_block_to_quantize": [[3]]},
            "modules_in_block_to_quantize is .*\n  allowed: lists of names",
        ),
    ],
)
def test_an_impossible_value_names_field_and_value(fields, text):
    with pytest.raises(ConfigError, match=text):
        config(**fields)


class TestOverrides:
    """``dynamic``: the first pattern that matches the beginning of a name counts."""

    def read(self):
        return config(
            dynamic={
                r"-:.*\.self_attn\.": {},
                r"+:.*\.1\.mlp\.down_proj": {"bits": 8, "group_size": 32, "sym": False},
                r".*\.mlp\.down_proj": {"desc_act": True, "bits": None, "mse": 2.4},
                r"lm_head": {"bits": 8},
            },
            lm_head=True,
        )

    @pytest.mark.parametrize(
        ("name", "spec", "source"),
        [
            ("model.layers.0.mlp.up_proj", "int4[1x128]", "bits = 4, group_size = 128, sym = True"),
            ("model.layers.0.mlp.down_proj", "int4[1x128]:act-order", r"dynamic['.*\\.mlp\\.down"),
            ("model.layers.1.mlp.down_proj", "uint8[1x32]:zero", r"dynamic['+:.*\\.1\\.mlp\\.down"),
        ],
    )
    def test_fields_of_a_pattern_count_for_its_layers(self, name, spec, source):
        decision = decide(self.read(), name)
        assert str(decision.scheme) == spec and decision.source.startswith(source)

    def test_a_minus_leaves_layers_as_they_are(self):
        decision = decide(self.read(), "model.layers.3.self_attn.q_proj")
        assert (decision.kind, decision.source) == (
            "unquantized",
            r"dynamic['-:.*\\.self_attn\\.']",
        )

    def test_a_quantized_head_may_have_an_override(self):
        assert str(decide(self.read(), HEAD, kind="head").scheme) == "int8[1x128]"

    def test_shards_that_are_said_to_differ_are_refused(self):
        read = config(dynamic={r".*\.q_proj": {"bits": 8}})
        decision = decide(read, "model.layers.0.self_attn.qkv_proj")
        assert decision.error and "the shards of model.layers.0.self_attn.qkv_proj disagree" in (
            decision.because
        )

    def test_patterns_that_match_nothing_are_known(self):
        read = self.read()
        decide(read, "model.layers.1.mlp.down_proj")
        assert [entry[:14] for entry in read.unmatched()] == ["dynamic['-:.*\\", "dynamic['lm_he"]

    def test_what_a_pattern_leaves_out_and_the_file_stores_is_quantized(self):
        read, stored = self.read(), tensors("int4[1x128]")
        decision = read.scheme_for(facts_of(stored, "model.layers.0.self_attn.q_proj"))
        assert str(decision.scheme) == "int4[1x128]"
        assert "leaves it out; the stored tensors decide" in read.notes()[0]


class TestHead:
    """S27: plain unless ``lm_head`` is true or words are stored."""

    def test_it_is_plain_where_nothing_is_said(self):
        assert decide(config(), HEAD, kind="head").kind == "unquantized"
        assert decide(config(lm_head=False), HEAD, kind="head", stored=FLOAT).kind == "unquantized"

    def test_it_is_quantized_where_the_json_or_the_file_says_so(self):
        assert decide(config(lm_head=True), HEAD, kind="head").kind == "quantized"
        facts = facts_of(tensors("int4[1x128]", n=320, k=256), HEAD)
        assert config().scheme_for(LayerFacts(prefix=HEAD, kind="head", stored=facts.stored)).scheme


class TestListsOfLayers:
    """modules_in_block_to_quantize and modules_to_not_convert; what is stored decides (S37)."""

    def read(self):
        return config(
            modules_in_block_to_quantize=[["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]],
            modules_to_not_convert=["layers.9"],
        )

    def test_layers_that_are_not_named_are_left_as_they_are(self):
        read = self.read()
        assert decide(read).scheme and decide(read, "model.layers.0.mlp.gate_up_proj").scheme
        left = decide(read, "model.layers.0.self_attn.q_proj")
        assert left.source == "modules_in_block_to_quantize, where no entry names it,"
        assert decide(read, "model.layers.9.mlp.up_proj").source.startswith("modules_to_not_conv")

    def test_s37_stored_words_count_more_with_one_note_for_a_pattern(self):
        read = self.read()
        for layer in range(3):
            facts = facts_of(tensors("int4[1x128]"), f"model.layers.{layer}.self_attn.q_proj")
            assert read.scheme_for(facts).kind == "quantized"
        assert read.notes() == (
            "model.layers.*.self_attn.q_proj is stored with qweight, though "
            "modules_in_block_to_quantize, where no entry names it, leaves it out; "
            "the stored tensors decide",
        )


class TestHeaders:
    """Shapes and dtypes against bits and group size, in numbers."""

    def error(self, stored, **fields):
        decision = config(group_size=32, **fields).scheme_for(facts_of(stored))
        assert decision.error
        return decision.because

    def test_wrong_bits_name_those_that_fit(self):
        because = self.error(tensors("int4[1x32]"), bits=8)
        assert because == (
            f"{UP}.qweight is [16, 64], not [32, 64]; {UP}.qzeros is [4, 8], not [4, 16], "
            "as bits = 8, group_size = 32 says (they fit bits = 4, group_size = 32)"
        )

    def test_a_wrong_group_size_names_the_one_that_fits(self):
        stored = tensors("int4[1x64]")
        assert "(they fit bits = 4, group_size = 64)" in self.error(stored)
        del stored["g_idx"]
        assert "(they fit bits = 4, group_size = 64)" in self.error(stored)

    def test_a_group_that_does_not_divide_k(self):
        because = self.error(tensors("int4[1x32]", k=112))
        assert because.startswith(f"{UP}.qweight is of K = 112, not a multiple of 32")

    def test_zero_points_of_another_width(self):
        stored = tensors("int4[1x32]")
        stored["qzeros"] = stored["qzeros"][:, :6].contiguous()
        assert f"{UP}.qzeros is [4, 6], not [4, 8]" in self.error(stored)

    def test_scales_that_are_integers(self):
        stored = tensors("int4[1x32]")
        stored["scales"] = stored["scales"].to(torch.int32)
        assert f"{UP}.scales is int32, not float16 or bfloat16 or float32" in self.error(stored)

    def test_act_order_without_an_index_is_in_a_row_with_a_note(self):
        stored = tensors("int4[1x32]")
        del stored["g_idx"]
        read = config(group_size=32, desc_act=True)
        assert str(read.scheme_for(facts_of(stored)).scheme) == "int4[1x32]"
        assert "is stored without g_idx, though desc_act = True" in read.notes()[0]

    def test_s14_parts_that_are_stored_differently_are_refused_by_name(self):
        stored = {f"q_proj.{k}": v for k, v in facts_of(tensors("int4[1x128]")).stored.items()}
        stored["v_proj.weight"] = StoredTensor(dtype="bfloat16", shape=(64, 128))
        because = decide(config(), "model.layers.6.self_attn.qkv_proj", stored=stored).because
        assert because.endswith("q_proj as qweight and v_proj as a plain weight")


def test_the_shape_of_a_weight_is_that_of_its_words():
    read = config(group_size=32, bits=3)
    facts = facts_of(tensors("int3[1x32]", n=96, k=256))
    scheme = read.scheme_for(facts).scheme
    assert read.weight_shape(scheme, facts) == (96, 256)
    assert read.weight_shape(scheme, LayerFacts(prefix=UP)) == ()


def test_slots_before_headers_are_read_may_lack_an_index_that_nothing_asks_for():
    facts = LayerFacts(prefix=UP)
    for desc_act, needed in ((False, 3), (True, 4)):
        read = config(desc_act=desc_act)
        slots = read.slots(decide(read).scheme, 64, 256, facts)
        assert [slot.shape for slot in slots] == [(32, 64), (2, 8), (2, 64), (256,)]
        assert sum(slot.default is None for slot in slots) == needed
