from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.numerics import decode, pack_bytes, sign_extend, unpack_bytes

QUARK = [("fp4", 4, "fp4_e2m1"), ("fp6_e2m3", 6, "fp6_e2m3")]


@pytest.mark.parametrize(("name", "bits", "element"), QUARK)
def test_bytes_are_those_of_quark(vector, name, bits, element):
    v = vector(f"quark-pack/{name}")
    codes = unpack_bytes(v["packed"], bits=bits)
    assert torch.equal(decode(codes, element), v["values"])
    assert torch.equal(pack_bytes(codes, bits=bits), v["packed"])


def test_int4_in_bytes_is_modelopts(vector):
    """It packs two output rows into a byte; so its transpose is packed along the last dimension."""
    v = vector("modelopt-weight/int4_awq_bf16")
    codes = sign_extend(unpack_bytes(v["ckpt.weight"].t(), bits=4), bits=4).t()
    scale = v["ckpt.weight_scale"].repeat_interleave(64, dim=1)
    wanted = (v["w"].float() / scale).round().clamp(-8, 7)
    assert (codes.float() - wanted).abs().max() <= 1
    assert ((codes.float() - wanted) == 0).float().mean() > 0.95
    assert torch.equal(pack_bytes(codes.t(), bits=4).t(), v["ckpt.weight"])


def test_four_codes_of_six_bits_lie_in_three_bytes_from_the_lowest_bit_up():
    codes = torch.tensor([0b000001, 0b000010, 0b000100, 0b100000], dtype=torch.uint8)
    assert pack_bytes(codes, bits=6).tolist() == [0b10000001, 0b01000000, 0b10000000]


def test_nibbles_lie_in_either_order():
    codes = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    assert pack_bytes(codes, bits=4).tolist() == [0x21, 0x43]
    high = pack_bytes(codes, bits=4, high_first=True)
    assert high.tolist() == [0x12, 0x34]
    assert torch.equal(unpack_bytes(high, bits=4, high_first=True), codes)


@given(
    packing=st.sampled_from([(4, False), (4, True), (6, False)]),
    periods=st.integers(0, 9),
    rows=st.integers(0, 3),
)
def test_packing_is_undone_both_ways(packing, periods, rows):
    bits, high_first = packing
    codes = torch.randint(0, 1 << bits, (2, rows, 4 * periods), dtype=torch.uint8)
    packed = pack_bytes(codes, bits=bits, high_first=high_first)
    assert packed.shape == (2, rows, bits * periods // 2)
    assert torch.equal(unpack_bytes(packed, bits=bits, high_first=high_first), codes)
    some = torch.randint(0, 256, (rows, 3 * periods), dtype=torch.uint8)
    codes = unpack_bytes(some, bits=bits, high_first=high_first)
    assert torch.equal(pack_bytes(codes, bits=bits, high_first=high_first), some)


def test_signed_bytes_and_torch_pairs_are_read_by_their_bits():
    packed = torch.tensor([[0x8F, 0x71]], dtype=torch.uint8)
    for dtype in (torch.int8, torch.float4_e2m1fn_x2):
        assert unpack_bytes(packed.view(dtype), bits=4).tolist() == [[15, 8, 1, 7]]
    signed = torch.tensor([[-1, -8, 1, 7]], dtype=torch.int8)
    assert torch.equal(pack_bytes(signed, bits=4), packed)
    assert torch.equal(sign_extend(unpack_bytes(packed, bits=4), bits=4), signed)


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(FormatError, match=r"\[2, 3\] codes of 4 bits do not fill whole bytes"):
        pack_bytes(torch.zeros(2, 3, dtype=torch.uint8), bits=4)
    with pytest.raises(FormatError, match=r"\[4\] bytes cannot hold codes of 6 bits[\s\S]*of 3"):
        unpack_bytes(torch.zeros(4, dtype=torch.uint8), bits=6)
    with pytest.raises(FormatError, match="Codes of 5 bits cannot be packed in bytes"):
        pack_bytes(torch.zeros(8, dtype=torch.uint8), bits=5)
    with pytest.raises(FormatError, match="6 bits cannot be packed in bytes high first"):
        unpack_bytes(torch.zeros(3, dtype=torch.uint8), bits=6, high_first=True)
