"""Values of other libraries, and how far ours are from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quantdock.formats import QuantSpec, parse_spec
from quantdock.numerics import (
    decode_scale,
    dequantize,
    expand_scale,
    quantize,
    tile_amax,
    torch_dtype,
)
from quantdock.numerics.cast import element_of

Vector = dict[str, Tensor]


class Difference(NamedTuple):
    """How many of ours differ from a library's, among tiles whose amax is large enough."""

    scales: int  # scales that are not bit-equal
    codes: int  # codes, each with its own scale
    codes_given: int  # codes, ours computed with the library's scale
    dequantized: int  # real values of the library's codes and scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What a library made of ``x``: codes, scale, zero point, and the real values if known."""

    x: Tensor
    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None
    real: Tensor | None = None
    second: Tensor | None = None


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def vector(golden: Path, request: pytest.FixtureRequest) -> Callable[[str], Vector]:
    """Return a reader of golden vectors by name; the large ones are in the shared folder only."""

    def read(name: str) -> Vector:
        file = golden / f"{name}.safetensors"
        if not file.exists():
            file = request.getfixturevalue("shared") / "golden" / f"{name}.safetensors"
        return load_file(file)

    return read


@pytest.fixture
def peer() -> type[Peer]:
    """Return the class of what a library made."""
    return Peer


@pytest.fixture
def compare() -> Callable[..., Difference]:
    """Return a function (peer, spec text, smallest amax to look at) -> Difference."""
    return _compare


def _compare(peer: Peer, text: str, smallest: float = 0.0) -> Difference:
    spec = parse_spec(text)
    x = peer.x.reshape(-1, peer.x.shape[-1])
    storage = torch_dtype(element_of(spec.element).storage)
    theirs = peer.codes.reshape(x.shape).view(storage)
    ours = quantize(x, spec)
    given = quantize(x, spec, peer.scale, peer.zero, second_scale=peer.second)
    amax = tile_amax(x, spec)
    tiles = amax >= smallest if smallest else amax > 0
    values = expand_scale(tiles, spec, *x.shape).expand(x.shape)
    return Difference(
        scales=_count(ours.scale, decode_scale(peer.scale).reshape(amax.shape), tiles),
        codes=_count(ours.codes, theirs, values),
        codes_given=_count(given.codes, theirs, values),
        dequantized=_unequal_reals(peer, theirs, spec),
    )


def _unequal_reals(peer: Peer, codes: Tensor, spec: QuantSpec) -> int:
    if peer.real is None:
        return 0
    second, dtype = peer.second, peer.real.dtype
    real = dequantize(codes, peer.scale, spec, zero=peer.zero, second_scale=second, dtype=dtype)
    wanted = peer.real.reshape(real.shape)
    return int(((real != wanted) & ~(real.isnan() & wanted.isnan())).sum())


def _count(ours: Tensor, theirs: Tensor, where: Tensor) -> int:
    if ours.element_size() == 1:
        ours, theirs = ours.view(torch.uint8), theirs.view(torch.uint8)
    return int(((ours != theirs) & where).sum())
