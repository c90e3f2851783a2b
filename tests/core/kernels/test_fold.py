"""Folding the scales of fused shards (field case S18)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.kernels.fold import expand_channelwise, requantize_with_max
from quantdock.numerics import CanonicalWeight, Segment

SIZES = {0.5: 256, 0.25: 128, 1.0: 128}


def fused(scales: dict[float, int], spec_text: str = "fp8_e4m3[*x*]") -> CanonicalWeight:
    """Return q, k and v of stored 16.0 with own scales, K = 256."""
    spec = parse_spec(spec_text)
    segments = [
        Segment(
            spec=spec,
            codes=torch.full((n, 256), 16.0).to(torch.float8_e4m3fn),
            scale=torch.tensor([[scale]]),
        )
        for scale, n in scales.items()
    ]
    return CanonicalWeight(segments=tuple(segments))


def test_requantizing_with_the_maximum_changes_codes_and_says_so() -> None:
    folded = requantize_with_max(fused(SIZES))
    assert [s.scale.item() for s in folded.segments] == [1.0, 1.0, 1.0]
    assert [s.codes.float().unique().tolist() for s in folded.segments] == [[8.0], [4.0], [16.0]]
    assert folded.value_steps == ("requantized 3 shards to the max of their scales",)
    assert (torch.ones(1, 256) @ folded.dequantize().T).unique().tolist() == [1024, 2048, 4096]


def test_equal_scales_leave_every_byte_and_record_nothing() -> None:
    weight = fused({0.5: 4})
    weight = replace(weight, segments=weight.segments * 3)
    assert requantize_with_max(weight) is weight


def test_the_shard_with_the_maximum_keeps_its_codes() -> None:
    weight = fused(SIZES)
    folded = requantize_with_max(weight)
    assert folded.segments[2].codes is weight.segments[2].codes


def test_nan_codes_survive_requantizing() -> None:
    weight = fused({0.5: 2, 1.0: 2})
    weight.segments[0].codes.view(torch.uint8)[0, 3] = 0x7F
    folded = requantize_with_max(weight)
    assert folded.segments[0].codes.float().isnan().sum() == 1


def test_the_rule_of_the_spec_is_followed() -> None:
    folded = requantize_with_max(fused(SIZES, "fp8_e4m3[*x*]:fold-min"))
    assert [s.scale.item() for s in folded.segments] == [0.25] * 3
    with pytest.raises(FormatError, match=r"they are \[0.5, 0.25, 1.0\], fold='same'"):
        requantize_with_max(fused(SIZES, "fp8_e4m3[*x*]:fold-same"))


def test_expanding_is_exact_and_records_nothing() -> None:
    weight = fused(SIZES)
    by_row = expand_channelwise(weight)
    assert [tuple(s.scale.shape) for s in by_row.segments] == [(256, 1), (128, 1), (128, 1)]
    assert {str(s.spec) for s in by_row.segments} == {"fp8_e4m3[1x*]"}
    assert by_row.value_steps == ()
    assert torch.equal(by_row.dequantize(), weight.dequantize())


@pytest.mark.parametrize("step", [expand_channelwise, requantize_with_max])
def test_other_tiles_are_refused(
    step: Callable[[CanonicalWeight], CanonicalWeight],
    make_weight: Callable[..., CanonicalWeight],
) -> None:
    with pytest.raises(FormatError, match=r"segment 0 is fp8_e4m3\[16x16\]"):
        step(make_weight("fp8_e4m3[16x16]", [16, 16], 32))
