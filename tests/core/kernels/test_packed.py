"""Several codes a byte: every code comes back, and decoding finds each plane of them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.formats import ELEMENTS
from quantdock.kernels.decode import Decoder
from quantdock.kernels.packed import codes_per_byte, pack_codes, unpack_codes
from quantdock.numerics import torch_dtype

INTEGERS = [e.name for e in ELEMENTS.values() if not e.is_float]


def codes_of(element: str, n: int, k: int) -> torch.Tensor:
    kind = ELEMENTS[element]
    random = torch.Generator().manual_seed(n * k)
    low, high = int(kind.lowest), int(kind.largest)
    codes = torch.randint(low, high + 1, (n, k), generator=random)
    return codes.to(torch_dtype(kind.storage))


@given(
    element=st.sampled_from(INTEGERS),
    n=st.integers(1, 9),
    widths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_every_span_comes_back(element: str, n: int, widths: list[int]) -> None:
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    columns = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    codes = codes_of(element, n, ends[-1])
    packed = pack_codes(codes, element, columns)
    bytes_ = sum(-(-width // codes_per_byte(element)) for width in widths)
    assert packed.shape == (n, bytes_)
    assert torch.equal(unpack_codes(packed, element, columns), codes)


@given(element=st.sampled_from(INTEGERS), n=st.integers(1, 9), k=st.integers(1, 70))
def test_decoding_gives_the_codes(element: str, n: int, k: int) -> None:
    codes = codes_of(element, n, k)
    packed = pack_codes(codes, element, [slice(0, k)])
    decoder = Decoder(element)
    assert torch.equal(decoder(packed, k) * decoder.unit, codes.float())


def test_codes_of_a_byte_are_not_copied() -> None:
    codes = codes_of("int5", 3, 4)
    assert codes_per_byte("int5") == 1
    assert pack_codes(codes, "int5", [slice(0, 4)]) is codes
