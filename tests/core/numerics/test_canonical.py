from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, join, quantize

SPEC = parse_spec("fp8_e4m3[4x4]")


def segment(n: int) -> Segment:
    q = quantize(torch.randn(n, 10), SPEC)
    return Segment(spec=SPEC, codes=q.codes, scale=q.scale)


def test_a_segment_dequantizes_by_its_spec():
    x = torch.randn(6, 10)
    q = quantize(x, parse_spec("uint8[1x*]:zero"))
    part = Segment(spec=parse_spec("uint8[1x*]:zero"), codes=q.codes, scale=q.scale, zero=q.zero)
    assert (part.dequantize() - x).abs().max() < 0.03
    assert part.dequantize(torch.bfloat16).dtype == torch.bfloat16


def test_a_scale_of_another_shape_is_refused():
    good = segment(6)
    with pytest.raises(
        FormatError, match=r"\[6, 10\] has a scale of shape \(1, 3\)[\s\S]*\(2, 3\)"
    ):
        Segment(spec=SPEC, codes=good.codes, scale=good.scale[:1])


def test_fused_layers_keep_their_segments_in_order():
    parts = [
        CanonicalWeight(segments=(segment(n),), input_scale=torch.tensor(s), value_steps=steps)
        for n, s, steps in [(3, 1.0, ()), (5, 2.0, ("requantized",))]
    ]
    whole = join(parts)
    assert whole.shape == (8, 10)
    assert whole.input_scale is not None
    assert whole.input_scale.tolist() == [1.0, 2.0]
    assert whole.value_steps == ("requantized",)
    expected = torch.cat([part.dequantize() for part in parts])
    assert torch.equal(whole.dequantize(), expected)
    assert join([CanonicalWeight(segments=(segment(3),))]).input_scale is None
