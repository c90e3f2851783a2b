"""Decoding pieces: every code, bit for bit."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import ELEMENTS
from quantdock.kernels.decode import FLOAT16_BITS, Decoder, has_lost_nan, unit_of
from quantdock.numerics import decode, torch_dtype

EIGHT_BITS = [e.name for e in ELEMENTS.values() if e.bits == 8]


def all_codes(element: str) -> torch.Tensor:
    return (
        torch.arange(256).to(torch.uint8).view(torch_dtype(ELEMENTS[element].storage)).view(1, -1)
    )


@pytest.mark.parametrize("element", EIGHT_BITS)
def test_all_256_codes_are_exact(element: str) -> None:
    codes = all_codes(element)
    expected = decode(codes, element)
    result = Decoder(element)(codes) * unit_of(element)
    lost = torch.zeros_like(expected, dtype=torch.bool)
    if element in FLOAT16_BITS:
        lost = has_lost_nan(codes.view(-1, 1), element).view(1, -1)
    assert torch.equal(expected.isnan(), result.isnan() | lost)
    kept = ~lost & ~expected.isnan()
    assert torch.equal(result[kept].view(torch.int32), expected[kept].view(torch.int32))


def test_lost_nan_is_found_by_row() -> None:
    codes = torch.tensor([[1, 2], [0x7F, 0], [0, 0xFF], [0x7E, 0xFE]], dtype=torch.uint8)
    found = has_lost_nan(codes.view(torch.float8_e4m3fn), "fp8_e4m3")
    assert found.tolist() == [False, True, True, False]
    codes = torch.tensor([[0x80, 2], [0x7F, 0xFF]], dtype=torch.uint8)
    found = has_lost_nan(codes.view(torch.float8_e4m3fnuz), "fp8_e4m3fnuz")
    assert found.tolist() == [True, False]
    assert has_lost_nan(torch.full((2, 3), 0x7F, dtype=torch.int8), "int8").tolist() == [False] * 2


def test_a_strided_piece_is_read_where_it_lies() -> None:
    codes = torch.randn(8, 12).to(torch.float8_e4m3fn)
    decoder = Decoder("fp8_e4m3")
    piece = codes[2:7, 3:10]
    assert torch.equal(decoder(piece) * decoder.unit, decode(piece.contiguous(), "fp8_e4m3"))


def test_memory_is_used_again_for_pieces_of_one_shape() -> None:
    decoder = Decoder("fp8_e4m3")
    first = decoder(torch.ones(4, 8).to(torch.float8_e4m3fn))
    second = decoder(torch.zeros(4, 8).to(torch.float8_e4m3fn))
    assert first.data_ptr() == second.data_ptr()
    assert decoder(torch.ones(3, 8).to(torch.float8_e4m3fn)).shape == (3, 8)


def test_inference_mode_leaves_nothing_that_fails_outside_of_it() -> None:
    codes = all_codes("fp8_e4m3")
    with torch.inference_mode():
        inside = Decoder("fp8_e4m3")(codes).clone()
    outside = Decoder("fp8_e4m3")(codes)
    assert torch.equal(inside, outside)
