"""GPTQ's words: values of GPTQModel bit for bit, both versions of zero points, bad input."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from packed_layers import PREFIX, decode, facts_of, fill
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.configs.gptq_tensors import ZeroStorage
from quantdock.errors import FormatError, LoadError
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, join, quantize_weight

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "gptq").glob("*.safetensors"))
VERSIONS = ("gptq", "gptq_v2")
_NAME = re.compile(r"gptqmodel_w(\d)_(?:(a?sym)_g(-?\d+)(_desc)?|v1_zero0_quirk)")


def read(file, version):
    """Return the config, the stored tensors and everything else of a golden file."""
    bits, sym, size, desc = _NAME.fullmatch(file.stem).groups()
    block = {
        "bits": int(bits),
        "group_size": int(size or 32),
        "sym": sym == "sym",
        "desc_act": bool(desc),
        "checkpoint_format": version,
        "meta": {"quantizer": ["gptqmodel:7.7.0"]},
    }
    values = load_file(file)
    stored = {name: values[name] for name in ("qweight", "scales", "g_idx")}
    stored["qzeros"] = values["qzeros_v1" if version == "gptq" else "qzeros_v2"]
    return GPTQConfig.from_config(block), stored, values


def check(file, version):
    """Compare codes, zero points, groups, values and words with those of GPTQModel."""
    config, stored, values = read(file, version)
    weight = decode(config, stored)
    (segment,) = weight.segments
    codes, zeros = values.get("codes"), values["zeros"].to(torch.int32)
    if segment.zero is None:
        middle = 1 << config.setting.bits - 1
        assert zeros.unique().tolist() == [middle]
        assert codes is None or torch.equal(segment.codes.to(torch.int32) + middle, codes.int())
    else:
        assert torch.equal(segment.zero, zeros)
        assert codes is None or torch.equal(segment.codes, codes)
    if segment.group_index is not None:
        assert torch.equal(segment.group_index, values["g_idx"])
    assert (segment.group_index is not None) == config.setting.desc_act
    assert torch.equal(weight.dequantize(torch.float16), values["dequant"].t())
    back = encode_gptq(weight, config.zeros)
    assert all(torch.equal(back[name], stored[name]) for name in stored)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_values_and_words_are_those_of_gptqmodel(file, version):
    check(file, version)


def test_all_vectors_of_gptqmodel_are_read(shared):
    for file in sorted((shared / "golden" / "gptq").glob("*.safetensors")):
        for version in VERSIONS:
            check(file, version)


def constant(bits, zero_stored, *, sym, version="gptq", n=8, k=32):
    """Return config and tensors of S06: all codes are the middle, all scales 1."""
    middle = 1 << bits - 1
    weight = CanonicalWeight(
        segments=(
            Segment(
                spec=parse_spec(f"uint{bits}[1x32]:zero"),
                codes=torch.full((n, k), middle, dtype=torch.uint8),
                scale=torch.ones(n, k // 32),
                zero=torch.full((n, k // 32), zero_stored, dtype=torch.int32),
            ),
        )
    )
    block = {"bits": bits, "group_size": 32, "sym": sym, "checkpoint_format": version}
    return GPTQConfig.from_config(block), encode_gptq(weight, ZeroStorage(v2=True))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
class TestVersionsOfZeroPoints:
    """S06: stored minus one or as meant, and files that mislabel themselves."""

    @pytest.mark.parametrize("sym", [True, False])
    @pytest.mark.parametrize(("version", "less"), [("gptq", 1), ("gptq_v2", 0)])
    def test_each_as_it_says(self, bits, sym, version, less):
        config, tensors = constant(bits, (1 << bits - 1) - less, sym=sym, version=version)
        assert decode(config, tensors).dequantize().unique().tolist() == [0.0]
        assert config.notes() == ()

    @pytest.mark.parametrize(("version", "less", "is_as"), [("gptq", 0, "_v2"), ("gptq_v2", 1, "")])
    def test_a_symmetric_file_that_says_the_other_is_read_with_a_warning(
        self, bits, version, less, is_as, caplog
    ):
        config, tensors = constant(bits, (1 << bits - 1) - less, sym=True, version=version)
        assert decode(config, tensors).dequantize().unique().tolist() == [0.0]
        note = (
            f"model.layers.*.mlp.up_proj is stored with zero points as gptq{is_as} has them, "
            f"though checkpoint_format = '{version}'; the stored tensors decide"
        )
        assert config.notes() == (note,)
        assert caplog.messages == [f"gptq: {note}"]

    def test_minus_one_wraps(self, bits):
        largest = (1 << bits) - 1
        config, tensors = constant(bits, largest, sym=False)
        assert decode(config, tensors).dequantize().unique().tolist() == [float(1 << bits - 1)]

    def test_a_symmetric_file_with_other_zero_points_is_an_error(self, bits):
        config, tensors = constant(bits, (1 << bits - 1) - 1, sym=True)
        tensors["qzeros"][0, 0] ^= 1
        with pytest.raises(LoadError) as caught:
            decode(config, tensors)
        middle = 1 << bits - 1
        assert str(caught.value).startswith(
            f"{PREFIX}.qzeros: 1 of 8 zero points are not {middle}, though sym = True.\n"
            f"  that of output 0 in group 0 is {middle + (1 if (middle - 1) % 2 == 0 else -1)}"
        )


def test_s19_three_bits_straddle_words():
    """Column 0 holds 0 to 7 four times: 96 bits."""
    words = torch.tensor([0x88FAC688, 0xC688FAC6, 0xFAC688FA]).to(torch.int32)
    tensors = {
        "qweight": words[:, None].expand(3, 32).contiguous(),
        "qzeros": torch.zeros(1, 3, dtype=torch.int32),
        "scales": torch.ones(1, 32, dtype=torch.float16),
    }
    config = GPTQConfig.from_config({"bits": 3, "group_size": 32, "format": "gptq_v2"})
    assert decode(config, tensors).dequantize()[0].tolist() == list(map(float, range(8))) * 4
    shapes = {"qweight": (24, 96), "qzeros": (8, 9), "scales": (8, 96)}
    facts = facts_of(
        {name: torch.zeros(shape, dtype=torch.int32) for name, shape in shapes.items()}
    )
    scheme = config.scheme_for(facts_of(tensors)).scheme
    assert config.weight_shape(scheme, facts) == (96, 256)
    tensors["qweight"] = torch.zeros(4, 32, dtype=torch.int32)  # ceil(32 / 10) words
    because = config.scheme_for(facts_of(tensors)).because
    assert "qweight is of K = 42, not a multiple of 32" in because


@st.composite
def weights(draw):
    """Return a canonical weight that GPTQ can store, with whole groups in some order."""
    bits, groups = draw(st.sampled_from([2, 3, 4, 8])), draw(st.integers(1, 4))
    size = draw(st.sampled_from([16, 32, 40]))
    n, k = draw(st.integers(1, 40)), groups * size
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    sym, order = draw(st.booleans()), draw(st.booleans()) and groups > 1
    codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8, generator=generator)
    codes = codes.sub_(1 << bits - 1).view(torch.int8) if sym else codes
    zero = torch.randint(0, 1 << bits, (n, groups), dtype=torch.int32, generator=generator)
    index = torch.arange(groups, dtype=torch.int32).repeat_interleave(size)
    index = index[torch.randperm(k, generator=generator)]
    marks = ("" if sym else ":zero") + (":act-order" if order else "")
    segment = Segment(
        spec=parse_spec(f"{'' if sym else 'u'}int{bits}[1x{size}]{marks}"),
        codes=codes,
        scale=torch.randn(n, groups, generator=generator).half().float(),
        zero=None if sym else zero,
        group_index=index if order else None,
    )
    return CanonicalWeight(segments=(segment,))


@given(weight=weights(), v2=st.booleans(), whole_words=st.booleans(), has_index=st.booleans())
def test_writing_is_undone_by_reading(weight, v2, whole_words, has_index):
    (segment,) = weight.segments
    spec, written_by = segment.spec, ["gptqmodel:1.0" if whole_words else "auto_gptq:0.7"]
    block = {
        "bits": int(spec.element.lstrip("uint")),
        "group_size": spec.cols,
        "sym": not spec.zero,
        "desc_act": spec.act_order,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
        "meta": {"quantizer": written_by},
    }
    tensors = encode_gptq(weight, ZeroStorage(v2=v2, whole_words=whole_words))
    if not (has_index or spec.act_order):
        del tensors["g_idx"]
    (back,) = decode(GPTQConfig.from_config(block), tensors).segments
    assert back.spec == spec and torch.equal(back.codes, segment.codes)
    assert torch.equal(back.scale, segment.scale)
    assert spec.zero is (back.zero is not None) and spec.act_order is (back.group_index is not None)
    assert not spec.zero or torch.equal(back.zero, segment.zero)
    assert not spec.act_order or torch.equal(back.group_index, segment.group_index)


class TestGroupsByIndex:
    """The stored index decides whether a weight is in act-order."""

    def layer(self, desc_act, index=None):
        weight = quantize_weight(torch.randn(8, 64), parse_spec("int4[1x32]"))
        tensors = encode_gptq(weight)
        tensors["g_idx"] = tensors["g_idx"] if index is None else index
        block = {"bits": 4, "group_size": 32, "sym": True, "desc_act": desc_act}
        return GPTQConfig.from_config(block), tensors, weight

    def test_one_in_a_row_is_dropped(self):
        config, tensors, weight = self.layer(desc_act=True)
        (segment,) = decode(config, tensors).segments
        assert str(segment.spec) == "int4[1x32]"
        assert torch.equal(segment.codes, weight.segments[0].codes)

    def test_one_in_another_order_counts_whatever_the_json_says(self):
        index = torch.arange(64, dtype=torch.int32).flip(0) % 2
        config, tensors, _ = self.layer(desc_act=False, index=index)
        (segment,) = decode(config, tensors).segments
        assert str(segment.spec) == "int4[1x32]:act-order"
        assert torch.equal(segment.group_index, index)
        assert "stored in act-order (g_idx), though desc_act = False" in config.notes()[0]

    @pytest.mark.parametrize("group", [2, -1])
    def test_a_group_that_does_not_exist_is_an_error(self, group):
        index = torch.arange(64, dtype=torch.int32) // 32
        index[5:7] = group
        config, tensors, _ = self.layer(desc_act=True, index=index)
        with pytest.raises(LoadError) as caught:
            decode(config, tensors)
        assert str(caught.value).startswith(
            f"{PREFIX}.g_idx: 2 of 64 columns are in groups that do not exist.\n"
            f"  column 5 is in group {group}, groups are 0 to 1"
        )

    def test_experts_of_a_file_in_act_order_all_have_an_index(self):
        """One kernel runs all of them; the index of some is in a row and that of others is not."""
        config, tensors, weight = self.layer(desc_act=True)
        facts = replace(facts_of(tensors), kind="experts")
        scheme = config.scheme_for(facts).scheme
        (segment,) = config.decode(scheme, [tensors], facts).segments
        assert segment.group_index.tolist() == [0] * 32 + [1] * 32
        assert torch.equal(segment.codes, weight.segments[0].codes)

    def test_shards_of_one_layer_agree_on_having_an_index(self):
        config, plain, _ = self.layer(desc_act=True)
        _, ordered, _ = self.layer(desc_act=True, index=torch.arange(64, dtype=torch.int32) % 2)
        scheme = config.scheme_for(facts_of(plain)).scheme
        slots = config.slots(scheme, 8, 64, facts_of(plain))
        stored = [fill(slots, plain), fill(slots, ordered)]
        weight = config.decode(scheme, stored, facts_of(plain))
        assert [s.spec.act_order for s in weight.segments] == [True, True]
        assert weight.segments[0].group_index.tolist() == [0] * 32 + [1] * 32


def test_what_gptq_cannot_store_is_refused():
    five = quantize_weight(torch.randn(4, 32), parse_spec("int5[1x32]"))
    with pytest.raises(FormatError, match=r"1 segments in int5\[1x32\][\s\S]*2, 3, 4, 8 bits"):
        encode_gptq(five)
    four = quantize_weight(torch.randn(4, 32), parse_spec("int4[1x32]"))
    with pytest.raises(FormatError, match="2 segments"):
        encode_gptq(join([four, four]))
    (segment,) = quantize_weight(torch.randn(4, 32), parse_spec("uint4[1x32]:zero")).segments
    segment.zero[0] = 16
    with pytest.raises(FormatError, match=r"1 of 4 zero points are no uint4[\s\S]*one is 16"):
        encode_gptq(CanonicalWeight(segments=(segment,)))
