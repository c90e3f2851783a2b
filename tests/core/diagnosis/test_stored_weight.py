"""A weight read again from its file, and its pieces."""

from __future__ import annotations

import pytest
import torch

from quantdock.diagnosis import stored_weight
from quantdock.diagnosis.stored_weight import row_pieces
from quantdock.formats import parse_spec
from quantdock.numerics import join, quantize_weight


@pytest.mark.parametrize("spec", ["fp8_e4m3[128x128]", "fp8_e4m3[1x*]", "fp8_e4m3[*x*]"])
@pytest.mark.parametrize("limit", [1, 64 * 130, 1 << 20])
def test_pieces_are_the_weight_and_cut_no_tile(spec, limit, monkeypatch):
    monkeypatch.setattr(stored_weight, "_PIECE", limit)
    generator = torch.Generator().manual_seed(1)
    shards = [torch.randn(n, 64, generator=generator) for n in (300, 130)]
    weight = join([quantize_weight(shard, parse_spec(spec)) for shard in shards])
    pieces = list(row_pieces(weight))
    stops = [rows.stop for rows, _ in pieces]
    assert [rows.start for rows, _ in pieces] == [0, *stops[:-1]] and stops[-1] == 430
    whole = torch.cat([piece.dequantize() for _, piece in pieces])
    assert torch.equal(whole, weight.dequantize())
