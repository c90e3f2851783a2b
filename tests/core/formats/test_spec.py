from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec, SecondScale, parse_spec
from quantdock.formats.spec import FOLDS, ROUNDINGS, SCALES

tile_sizes = st.one_of(st.none(), st.integers(1, 10_000))
specs = st.builds(
    dict,
    element=st.sampled_from(list(ELEMENTS)),
    rows=tile_sizes,
    cols=tile_sizes,
    scale=st.sampled_from(SCALES),
    rounding=st.sampled_from(ROUNDINGS),
    zero=st.booleans(),
    act_order=st.booleans(),
    dynamic=st.booleans(),
    fold=st.sampled_from(FOLDS),
    second=st.none(),
).filter(lambda fields: _is_possible(**fields))


def _is_possible(rows, cols, scale, rounding, act_order, dynamic, **_):
    in_groups = rows == 1 and cols is not None and not dynamic
    return not (scale == "e8m0" and rounding == "exact") and (in_groups or not act_order)


@st.composite
def specs_of_two_levels(draw):
    fields = draw(specs.filter(lambda f: not f["act_order"])) | {"zero": False}
    sides = {
        side: None if fields[side] is None else draw(st.one_of(st.none(), st.integers(1, 9)))
        for side in ("rows", "cols")
    }
    tile = {side: times and fields[side] * times for side, times in sides.items()}
    second = SecondScale(**tile, dynamic=fields["dynamic"] and draw(st.booleans()))
    return fields | {"second": second}


@given(st.one_of(specs, specs_of_two_levels()))
def test_every_spec_is_read_back_from_its_text(fields):
    spec = QuantSpec(**fields)
    assert parse_spec(str(spec)) == spec
    assert hash(parse_spec(str(spec))) == hash(spec)


@pytest.mark.parametrize(
    ("rows", "cols", "granularity"),
    [
        (None, None, "tensor"),
        (1, None, "channel"),
        (1, 128, "group"),
        (128, 128, "block"),
        (128, 1, "block"),
        (None, 1, "block"),
    ],
)
def test_granularity_follows_from_the_tile(rows, cols, granularity):
    assert QuantSpec(element="int8", rows=rows, cols=cols).granularity == granularity


@given(n=st.integers(0, 500), k=st.integers(0, 500), rows=tile_sizes, cols=tile_sizes)
def test_the_grid_covers_the_tensor_with_no_empty_tile(n, k, rows, cols):
    grid = QuantSpec(element="fp8_e4m3", rows=rows, cols=cols).grid(n, k)
    for size, tile, count in ((n, rows, grid[0]), (k, cols, grid[1])):
        tile = tile or max(size, 1)
        assert count * tile >= size
        assert (count - 1) * tile < size or count == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"element": "fp8"}, "element='fp8'; known: fp8_e4m3, "),
        ({"element": "int8", "scale": "f16"}, "scale='f16'; known: f32, bf16, e4m3, e8m0"),
        ({"element": "int8", "rounding": "up"}, "rounding='up'; known: exact, ceil, floor, even"),
        ({"element": "int8", "fold": "mean"}, "fold='mean'; known: max, min, same"),
        ({"element": "int8", "rows": 0}, "tile 0 x None: both must be at least 1"),
        ({"element": "int8", "cols": -1}, "tile None x -1: both must be at least 1"),
        ({"element": "int8", "scale": "e8m0"}, "rounding='exact' cannot be kept"),
    ],
)
def test_impossible_fields_are_named(fields, text):
    with pytest.raises(FormatError, match=r"A QuantSpec has impossible fields") as caught:
        QuantSpec(**fields)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp4_e2m1[1x16]:second[1x24]", "tile of 24 columns does not hold whole first ones of 16"),
        ("fp8_e4m3[*x32]:second[8x*]", "tile of 8 rows does not hold whole first ones of all"),
        ("fp4_e2m1[1x16]:second[0x*]", "tile of 0 rows"),
        ("uint4[1x16]:zero:second[*x*]", "zero=True is for one level"),
        ("int4[1x16]:act-order:second[*x*]", "act_order=True is for one level"),
        ("fp4_e2m1[1x16]:second[*x*]-dynamic", "belongs to dynamic first ones"),
    ],
)
def test_impossible_second_scales_are_named(text, message):
    with pytest.raises(FormatError, match=message):
        parse_spec(text)


def test_second_scales_are_stored_unless_they_are_dynamic_too():
    local = parse_spec("fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]")
    assert local.dynamic and local.is_static
    assert local.second == SecondScale()
    assert not parse_spec("fp4_e2m1[1x16]:e4m3:dynamic:second[1x*]-dynamic").is_static
    assert parse_spec("fp8_e4m3[*x*]").is_static
    assert not parse_spec("fp8_e4m3[*x*]:dynamic").is_static
    assert parse_spec("int4[1x16]:second[64x32]").second.grid(100, 100) == (2, 4)


def test_all_impossible_fields_are_named_at_once():
    with pytest.raises(FormatError) as caught:
        QuantSpec(element="x", rows=0, fold="y")
    assert len(caught.value.why) == 3


@pytest.mark.parametrize(
    "text", ["", "fp8_e4m3", "fp8_e4m3[128]", "fp8_e4m3[1x2", "fp8_e4m3[-1x2]", "fp8_e4m3[1x2]:"]
)
def test_another_form_is_refused(text):
    with pytest.raises(FormatError):
        parse_spec(text)


def test_unknown_marks_are_named():
    with pytest.raises(FormatError, match=r"unknown marks \['dynamik'\]"):
        parse_spec("fp8_e4m3[1x*]:dynamik")


@pytest.mark.parametrize("text", ["fp8_e4m3[0x1]", "fp4[1x16]", "int8[1x*]:fold-mean"])
def test_texts_of_impossible_specs_are_refused(text):
    with pytest.raises(FormatError, match=r"impossible fields"):
        parse_spec(text)
