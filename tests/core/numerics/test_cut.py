"""Cut weights stand for the same values as the whole, wherever the cut begins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, join, quantize_weight
from quantdock.numerics.cut import cut_columns, cut_rows, pieces

SPECS = [
    "fp8_e4m3[*x*]",
    "fp8_e4m3[1x*]",
    "fp8_e4m3[*x32]",
    "fp8_e4m3[128x128]",
    "fp8_e4m3[32x48]",
    "fp8_e4m3[1x32]:e8m0:ceil",
    "int8[1x64]",
    "uint4[1x32]:zero",
    "fp8_e4m3fnuz[64x64]",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp4_e2m1[1x16]:e4m3:second[1x*]",
    "int8[2x16]:second[8x32]",
    "int4[1x*]:second[50x*]",
]


def weight(text, n=150, k=170, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return quantize_weight(torch.randn(n, k, generator=generator), parse_spec(text))


def bits(values):
    return values.contiguous().view(torch.int32)


@given(st.sampled_from(SPECS), st.data())
def test_any_cut_has_the_values_of_the_whole(text, data):
    whole = weight(text)
    top = data.draw(st.integers(0, 149))
    bottom = data.draw(st.integers(top + 1, 150))
    left = data.draw(st.integers(0, 169))
    right = data.draw(st.integers(left + 1, 170))
    for part in (
        cut_columns(cut_rows(whole, top, bottom), left, right),
        cut_rows(cut_columns(whole, left, right), top, bottom),
    ):
        assert torch.equal(
            bits(part.dequantize()), bits(whole.dequantize()[top:bottom, left:right])
        )


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("size", [2, 5])
def test_parts_next_to_each_other_are_the_whole(text, size):
    whole = weight(text)
    step = 150 // size
    rows = join([cut_rows(whole, top, top + step) for top in range(0, 150, step)])
    assert torch.equal(bits(rows.dequantize()), bits(whole.dequantize()))


def test_rows_keep_their_tiles_and_begin_with_what_is_left_of_one():
    part = cut_rows(weight("fp8_e4m3[128x128]", 700), 100, 600)
    assert [s.codes.shape[0] for s in part.segments] == [28, 472]
    assert {str(s.spec) for s in part.segments} == {"fp8_e4m3[128x128]"}
    assert [s.scale.shape[0] for s in part.segments] == [1, 4]


@pytest.mark.parametrize(("start", "tile"), [(128, 128), (96, 32), (80, 16), (81, 1), (64, 64)])
def test_columns_get_the_widest_tiles_that_fit(start, tile):
    part = cut_columns(weight("fp8_e4m3[128x128]"), start, 170)
    assert part.segments[0].spec.cols == tile


def test_segments_are_cut_where_they_lie_and_keep_their_input_scales():
    parts = [weight("fp8_e4m3[*x*]", n, seed=n) for n in (40, 50, 60)]
    fused = CanonicalWeight(
        segments=tuple(s for part in parts for s in part.segments),
        input_scale=torch.tensor([1.0, 2.0, 3.0]),
        value_steps=("a step",),
    )
    part = cut_rows(fused, 60, 100)
    assert [s.codes.shape[0] for s in part.segments] == [30, 10]
    assert part.input_scale.tolist() == [2.0, 3.0]
    assert part.value_steps == ("a step",)
    assert torch.equal(part.dequantize(), fused.dequantize()[60:100])


def test_a_segment_that_becomes_two_has_its_input_scale_twice():
    whole = weight("fp8_e4m3[128x128]", 300)
    part = cut_rows(
        CanonicalWeight(segments=whole.segments, input_scale=torch.tensor([0.5])), 100, 200
    )
    assert part.input_scale.tolist() == [0.5, 0.5]


def test_a_part_has_memory_of_its_own():
    whole = weight("fp8_e4m3[1x*]")
    for part in (cut_rows(whole, 0, 10), cut_columns(whole, 0, 10)):
        (segment,) = part.segments
        assert segment.codes.untyped_storage().nbytes() == segment.codes.numel()
        assert segment.codes.is_contiguous()


def test_all_of_a_weight_is_the_weight():
    whole = weight("fp8_e4m3[1x*]")
    assert cut_rows(whole, 0, 150) is whole and cut_columns(whole, 0, 170) is whole


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (10, 200), (-1, 5), (20, 10)])
def test_a_range_outside_is_refused(start, stop):
    with pytest.raises(FormatError, match=rf"cannot be cut to rows {start} to {stop}"):
        cut_rows(weight("fp8_e4m3[1x*]"), start, stop)
    with pytest.raises(FormatError, match="cannot be cut to columns"):
        cut_columns(weight("fp8_e4m3[1x*]"), start, stop)


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([None, 1, 32, 128]))
def test_pieces_are_at_most_two_and_end_at_borders(start, length, tile):
    found = list(pieces(start, start + length, tile))
    assert len(found) in (1, 2)
    assert found[0][0] == start and found[-1][1] == start + length
    if len(found) == 2:
        assert found[0][1] == found[1][0] and found[0][1] % tile == 0


def test_columns_in_act_order_keep_the_groups_they_use():
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (16, 128), generator=generator, dtype=torch.uint8)
    scale = torch.rand(16, 4, generator=generator) + 0.5
    zero = torch.randint(0, 16, (16, 4), generator=generator, dtype=torch.int32)
    group = torch.arange(4).repeat_interleave(32)[torch.randperm(128, generator=generator)]
    group = torch.cat([group[group != 2], group[group == 2]]).to(torch.int32)  # 2 comes last
    spec = parse_spec("uint4[1x32]:zero:act-order")
    segment = Segment(spec=spec, codes=codes, scale=scale, zero=zero, group_index=group)
    whole = CanonicalWeight(segments=(segment,), input_multiplier=torch.arange(128.0))
    expected = scale[:, group] * (codes.int() - zero[:, group])
    assert torch.equal(whole.dequantize(), expected)
    parts = [cut_columns(whole, 0, 72), cut_columns(whole, 72, 128)]
    assert torch.equal(torch.cat([p.dequantize() for p in parts], 1), expected)
    assert [p.segments[0].scale.shape[1] for p in parts] == [3, 4]
    assert parts[1].input_multiplier.tolist() == list(range(72, 128))
    rows = cut_rows(parts[1], 3, 9)
    assert torch.equal(rows.dequantize(), expected[3:9, 72:])
