"""AWQ's words in AutoAWQ's three layouts: values of AutoAWQ bit for bit, and bad input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from packed_layers import PREFIX, decode
from quantdock.configs.awq import AWQConfig
from quantdock.configs.awq_codes import encode_awq
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.errors import FormatError, LoadError
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, quantize_weight
from quantdock.schemes import LayerFacts

PREFIX_FACTS = LayerFacts(prefix=PREFIX)
VERSIONS = ("gemm", "gemv", "gemv_fast")


def config(size=32, *, version="gemm", zero_point=True):
    block = {"bits": 4, "group_size": size, "zero_point": zero_point, "version": version}
    return AWQConfig.from_config(block)


def check_gemm(file):
    values = load_file(file)
    stored = {name: values[name] for name in ("qweight", "qzeros", "scales")}
    weight = decode(config(int(file.stem.split("_g")[2].split("_")[0])), stored)
    (segment,) = weight.segments
    assert torch.equal(segment.codes, values["codes"].t())
    assert torch.equal(segment.zero, values["zeros"].t().int())
    assert torch.equal(weight.dequantize(torch.float16), values["dequant"].t())
    assert all(torch.equal(t, stored[name]) for name, t in encode_awq(weight).items())


def test_gemm_is_read_and_written_as_autoawq_does(golden):
    check_gemm(golden / "awq" / "autoawq_gemm_g64_96x192.safetensors")


def test_gemm_of_all_sizes(shared):
    for file in (shared / "golden" / "awq").glob("autoawq_gemm_*.safetensors"):
        check_gemm(file)


def test_gemv_is_read_and_written_as_autoawq_does(golden):
    values = load_file(golden / "awq" / "autoawq_gemv.safetensors")
    stored = {name: values[name] for name in ("qweight", "qzeros", "scales")}
    weight = decode(config(64, version="gemv"), stored)
    assert torch.equal(weight.segments[0].zero, values["codes_zeros"].int())
    # The library's values are those before its scales were rounded to f16.
    assert torch.allclose(weight.dequantize(), values["dequant"], rtol=1e-3, atol=1e-7)
    assert all(torch.equal(t, stored[name]) for name, t in encode_awq(weight, "gemv").items())


@pytest.mark.parametrize("name", ["g64_64x256", "g128_32x384", "g32_16x128"])
def test_gemv_fast_is_read_and_written_as_autoawq_does(golden, name):
    values = load_file(golden / "awq" / f"autoawq_gemv_fast_{name}.safetensors")
    stored = {key: values[key] for key in ("qweight", "qzeros", "scales")}
    weight = decode(config(int(name[1:].split("_")[0]), version="gemv_fast"), stored)
    (segment,) = weight.segments
    assert torch.equal(segment.codes, values["codes"])
    assert torch.equal(segment.zero, values["zeros"].int())
    assert torch.equal(weight.dequantize(torch.float16), values["dequant"])
    written = encode_awq(weight, "gemv_fast")
    assert all(torch.equal(tensor, stored[key]) for key, tensor in written.items())


@pytest.mark.parametrize("name", ["g-1_64x96", "g32_64x128"])
def test_gemm_becomes_the_gptq_that_autoawq_makes_of_it(golden, name):
    """AutoAWQ writes the neighbours of a zero point of 0 wrongly, in GPTQ's first version."""
    values = load_file(golden / "awq" / f"autoawq_to_exllama_{name}.safetensors")
    stored = {key: values[key] for key in ("qweight", "qzeros")}
    stored["scales"] = torch.ones(len(stored["qzeros"]), 64, dtype=torch.float16)
    weight = decode(config(int(name[1:].split("_")[0])), stored)
    gptq = encode_gptq(weight)
    assert torch.equal(gptq["qweight"], values["qweight_gptq"])
    right = (weight.segments[0].zero.t().reshape(-1, 8, 8) > 0).all(dim=-1)
    assert right.sum() >= right.numel() - 4
    assert torch.equal(gptq["qzeros"][right], values["qzeros_gptq_v1"][right])


@given(
    version=st.sampled_from(VERSIONS),
    size=st.sampled_from([16, 32, 64, 128, None]),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    sym=st.booleans(),
    seed=st.integers(0, 999),
)
def test_writing_is_undone_by_reading(version, size, shape, sym, seed):
    n, k = shape[0] * 8, shape[1] * 128
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=generator)
    groups = k // (size or k)
    scale = torch.rand(n, groups, generator=generator).add(0.001).half().float()
    zero = torch.randint(0, 16, (n, groups), dtype=torch.int32, generator=generator)
    spec = parse_spec(f"{'' if sym else 'u'}int4[1x{size or '*'}]{'' if sym else ':zero'}")
    codes = codes.sub_(8).view(torch.int8) if sym else codes
    segment = Segment(spec=spec, codes=codes, scale=scale, zero=None if sym else zero)
    tensors = encode_awq(CanonicalWeight(segments=(segment,)), version)
    (back,) = decode(config(size or -1, version=version, zero_point=not sym), tensors).segments
    assert back.spec == spec and torch.equal(back.codes, codes)
    assert torch.equal(back.scale, scale)
    assert sym or torch.equal(back.zero, zero)


class TestSymmetricFiles:
    """zero_point = False: zero points are the middle, and need not be stored."""

    def layer(self, version="gemm"):
        weight = quantize_weight(torch.randn(8, 128), parse_spec("int4[1x32]"))
        return encode_awq(weight, version), weight

    @pytest.mark.parametrize("version", ["gemm", "gemv"])
    def test_without_words_of_zero_points(self, version):
        tensors, weight = self.layer(version)
        del tensors["qzeros"]
        (segment,) = decode(config(version=version, zero_point=False), tensors).segments
        assert torch.equal(segment.codes, weight.segments[0].codes)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_with_other_zero_points_is_an_error(self, version):
        tensors, _ = self.layer(version)
        if version == "gemv_fast":
            tensors["qzeros"][0, 0] = tensors["scales"][0, 0] * -7
        else:
            tensors["qzeros"][0, 0] ^= 0xF
        with pytest.raises(LoadError) as caught:
            decode(config(version=version, zero_point=False), tensors)
        assert str(caught.value).startswith(
            f"{PREFIX}.qzeros: 1 of 32 zero points are not 8, though zero_point = False.\n"
            "  that of output 0 in group 0 is 7"
        )

    def test_with_zero_points_they_have_to_be_stored(self):
        tensors, _ = self.layer()
        slots = config().slots(config().usual(PREFIX_FACTS).scheme, 8, 128, PREFIX_FACTS)
        assert {s.name for s in slots if s.default is None} == tensors.keys()


def test_products_that_belong_to_no_zero_point_are_an_error():
    weight = quantize_weight(torch.randn(8, 128), parse_spec("uint4[1x32]:zero"))
    tensors = encode_awq(weight, "gemv_fast")
    tensors["qzeros"][1, 2] = tensors["scales"][1, 2] * -3.5
    with pytest.raises(LoadError, match=r"1 of 32 products[\s\S]*output 2 in group 1 is 3\.[45]"):
        decode(config(version="gemv_fast"), tensors)


def test_what_awq_cannot_store_is_refused():
    weight = quantize_weight(torch.randn(8, 32), parse_spec("int8[1x32]"))
    with pytest.raises(FormatError, match=r"awq cannot store .* in int8\[1x32\][\s\S]*4 bits"):
        encode_awq(weight)
