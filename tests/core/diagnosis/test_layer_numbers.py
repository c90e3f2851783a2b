"""How far one layer is from what it should be, as pure functions of tensors."""

from __future__ import annotations

import math

import pytest
import torch

from quantdock.diagnosis import stored_weight
from quantdock.diagnosis.layer_numbers import BaseError, Error, base_error, kernel_error
from quantdock.kernels import oracle
from quantdock.numerics import join, quantize_weight
from quantdock.schemes import parse_scheme

SCHEME = parse_scheme("fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic")


@pytest.fixture
def layer():
    """Return the 16-bit shards, their weight in blocks, activations and the right result."""
    generator = torch.Generator().manual_seed(3)
    shards = [torch.randn(n, 256, generator=generator) for n in (256, 128)]
    weight = join([quantize_weight(shard, SCHEME.weight) for shard in shards])
    x = torch.randn(2, 5, 256, generator=generator)
    return shards, weight, x, oracle.linear(SCHEME, weight, x)


@pytest.mark.parametrize("limit", [1 << 22, 128 * 256])
def test_the_kernel_is_measured_whole_however_it_is_cut(layer, limit, monkeypatch):
    monkeypatch.setattr(stored_weight, "_PIECE", limit)
    _, weight, x, y = layer
    bias = torch.arange(384.0)
    assert kernel_error(SCHEME, weight, x, y, None) == 0.0
    assert kernel_error(SCHEME, weight, x, y * 1.5, None) == pytest.approx(0.5, abs=1e-6)
    assert kernel_error(SCHEME, weight, x, oracle.linear(SCHEME, weight, x, bias), bias) == 0.0
    half = y.clone()
    half[..., 300:] = torch.nan
    assert kernel_error(SCHEME, weight, x, half, None) == math.inf


def test_rounding_alone_is_explained(layer):
    shards, weight, x, _ = layer
    found = base_error(SCHEME, weight, x, shards)
    assert found.result == found.explained and 0.02 < found.result < 0.06
    assert found.row == found.explained_row and not found.is_bad


def test_a_row_of_the_second_shard_is_named(layer):
    shards, weight, x, _ = layer
    weight.segments[1].codes.view(torch.uint8)[7] ^= 0x80
    found = base_error(SCHEME, weight, x, shards)
    assert found.is_bad and found.worst_row == 256 + 7
    assert found.row == pytest.approx(2.0, abs=0.05)


def test_twice_the_explained_error_and_a_little_is_allowed():
    def error(result: float, row: float = 0.0) -> BaseError:
        return BaseError(result=result, explained=0.03, row=row, explained_row=0.04, worst_row=0)

    assert not error(0.069).is_bad and error(0.071).is_bad
    assert not error(0.03, row=0.129).is_bad and error(0.03, row=0.131).is_bad
    assert error(math.nan).is_bad and error(0.0, row=math.inf).is_bad


def test_numbers_that_end_alike_are_equal():
    error = Error()
    error.add(torch.tensor([1.0, torch.inf, torch.nan]), torch.tensor([1.0, torch.inf, torch.nan]))
    assert error.relative == 0.0
    error.add(torch.tensor([torch.inf]), torch.tensor([3.0]))
    assert error.relative == math.inf
    empty = Error()
    empty.add(torch.zeros(2), torch.zeros(2))
    assert empty.relative == 0.0
    empty.add(torch.ones(1), torch.zeros(1))
    assert empty.relative == math.inf
