"""Cut: what of a file's tensors a rank needs, and when that is enough to decode."""

from __future__ import annotations

import pytest

from quantdock.formats import parse_spec
from quantdock.methods.cut import Cut, parts_of
from quantdock.methods.slot import Slot
from quantdock.schemes import parse_scheme

CODES = Slot(name="weight", shapes=((704, 320),), dtypes=("float8_e4m3fn",))
BLOCKS = Slot(
    name="scale", shapes=((6, 3), (6, 1, 3, 1)), dtypes=("float32",), row_tile=128, col_tile=128
)
ONE = Slot(name="scale", shapes=((1,), ()), dtypes=("float32",), row_tile=None, col_tile=None)
ROWS = Slot(name="scale", shapes=((704, 1),), dtypes=("float32",), row_tile=1, col_tile=None)
PACKED = Slot(name="qweight", shapes=((40, 704),), dtypes=("int32",), row_tile=1, col_tile=8)
ORDER = Slot(name="g_idx", shapes=((320,),), dtypes=("int32",), row_tile=None, col_tile=1)


def cut(rows=range(704), columns=range(320)):
    return Cut(n=704, k=320, rows=rows, columns=columns)


@pytest.mark.parametrize(
    ("slot", "part", "region"),
    [
        (CODES, cut(range(352, 704)), (slice(352, 704), slice(0, 320))),
        (BLOCKS, cut(range(128, 352)), (slice(1, 3), slice(0, 3))),
        (BLOCKS, cut(range(352, 704)), None),
        (BLOCKS, cut(columns=range(256, 320)), (slice(0, 6), slice(2, 3))),
        (BLOCKS, cut(columns=range(160, 320)), None),
        (ONE, cut(range(352, 704)), ()),
        (ROWS, cut(range(1, 2)), (slice(1, 2), slice(0, 1))),
        (ROWS, cut(columns=range(7, 9)), (slice(0, 704), slice(0, 1))),
        (PACKED, cut(range(0, 352)), None),
        (ORDER, cut(columns=range(0, 160)), None),
    ],
)
def test_what_is_needed_of_a_stored_tensor(slot, part, region):
    assert part.part_of(slot) == region


@pytest.mark.parametrize(
    ("tile", "part", "is_enough"),
    [
        ("128x128", cut(range(128, 256)), True),
        ("128x128", cut(range(128, 704)), True),
        ("128x128", cut(range(0, 96)), False),
        ("128x128", cut(range(96, 256)), False),
        ("1x*", cut(range(3, 5)), True),
        ("1x*", cut(columns=range(0, 160)), False),
        ("*x*", cut(range(0, 352)), False),
        ("1x32", cut(columns=range(32, 160)), True),
    ],
)
def test_quantizing_at_load_needs_all_that_a_scale_covers(tile, part, is_enough):
    spec = parse_spec(f"fp8_e4m3[{tile}]")
    assert (parts_of([CODES], part, spec, is_online=True) is not None) is is_enough
    assert parts_of([CODES], part, spec, is_online=False) is not None


def test_one_tensor_that_cannot_be_cut_makes_all_be_decoded():
    part = cut(range(352, 704))
    spec = parse_spec("fp8_e4m3[128x128]")
    assert parts_of([CODES, BLOCKS], part, spec, is_online=False) is None


def test_activations_follow_a_narrower_tile_only_where_they_had_its_width():
    part = cut(columns=range(160, 320))
    schemes = {
        "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic": (
            "fp8_e4m3[128x32] x fp8_e4m3[1x32]:dynamic"
        ),
        "fp8_e4m3[128x128] x fp8_e4m3[1x*]:dynamic": "fp8_e4m3[128x32] x fp8_e4m3[1x*]:dynamic",
        "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
        "fp8_e4m3[*x*] x fp8_e4m3[*x*]": "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
        "fp8_e4m3[128x128]": "fp8_e4m3[128x32]",
    }
    for whole, narrow in schemes.items():
        assert str(part.scheme(parse_scheme(whole))) == narrow


def test_a_cut_says_what_it_is():
    assert str(cut(range(352, 704))) == "rows 352-703 of 704"
    assert str(cut(columns=range(0, 160))) == "columns 0-159 of 320"
    assert str(Cut.whole(704, 320)) == ""
