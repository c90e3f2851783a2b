"""The quantization kernels under Triton's interpreter, on values whose codes need no rounding.

The interpreter rounds to float8 wrongly and loses NaN on the way; the device tests compare all
values.
"""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import quantize
from quantdock_triton.encoding import claimed_rows

# numpy, which interprets, says when a value leaves f32.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
DYNAMIC = (
    "fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x32]:dynamic",
    "fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x96]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "fp8_e4m3[1x128]:e8m0:floor:dynamic",
    "fp8_e4m3[*x*]:dynamic",
    "int8[1x*]:dynamic",
    "int8[1x32]:dynamic",
)
SHAPES = ((1, 96), (7, 320), (17, 130))


def exact_values(text, m, k):
    """Return x [m, k] whose quotients are small whole numbers in every tile."""
    top = 126 if "int8" in text else 14
    x = torch.randint(-top, top + 1, (m, k)).float()
    x[:, ::32] = 127 if "int8" in text else 14
    return x * 2.0 ** torch.randint(-3, 4, (m, 1) if "[*x*]" not in text else (1, 1))


def assert_equal(run, text, x, static=None):
    expected = quantize(x, parse_spec(text), scale=None if static is None else static.amax())
    codes, scale = run(x, static)
    m = x.shape[0]
    assert codes.shape[0] % 4 == 0 and codes.dtype == expected.codes.dtype
    assert torch.equal(codes[:m].view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(scale if "[*x*]" in text else scale[:m], expected.scale)


@pytest.mark.parametrize("text", DYNAMIC)
def test_computed_scales(interpreted, text):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    for m, k in SHAPES:
        assert_equal(quantizer(parse_spec(text), k), text, exact_values(text, m, k))


@pytest.mark.parametrize("text", ["fp8_e4m3[*x*]", "int8[*x*]"])
@pytest.mark.parametrize("static", [[0.25], [0.5, 1.0, 0.25], [0.0]])
def test_static_scales_fold_to_the_largest(interpreted, text, static):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    run = quantizer(parse_spec(text), 130, len(static))
    assert_equal(run, text, torch.randint(-7, 8, (9, 130)).float(), torch.tensor(static))


def test_rows_are_held_in_pieces_or_read_in_turns(interpreted):
    module = interpreted("quantdock_triton.quantize")
    text = "fp8_e4m3[1x*]:dynamic"
    for k in (module.LONG + 160, module.WIDE_ROW + 32):
        assert_equal(module.Quantizer(parse_spec(text), k), text,
                     exact_values(text, 2, k))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_PIECES", 1)
        run = module.Quantizer(parse_spec(text), module.LONG + 160)
        assert_equal(run, text, exact_values(text, 2, module.LONG + 160))


def test_a_whole_tensor_in_several_turns(interpreted):
    module = interpreted("quantdock_triton.quantize_whole")
    quantizer = interpreted("quantdock_triton.quantize").Quantizer
    text = "fp8_e4m3[*x*]:dynamic"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PARTS", 3)
        patch.setattr(module, "PROGRAMS", 2)
        assert_equal(quantizer(parse_spec(text), 1100), text, exact_values(text, 33, 1100))


@pytest.mark.parametrize("text", ["fp8_e4m3[*x*]:dynamic", "int8[*x*]:dynamic"])
def test_a_whole_tensor_in_one_launch(interpreted, text):
    """The interpreter runs programs one after the other, so only one can wait for all."""
    quantizer = interpreted("quantdock_triton.quantize").Quantizer
    slots = torch.zeros(interpreted("quantdock_triton.quantize_whole").NUM_SLOTS).int()
    run = quantizer(parse_spec(text), 130, together=1)
    for turn, m in enumerate((2, 5, 8)):
        assert_equal(lambda x, static: run(x, static, slots), text, exact_values(text, m, 130))
        assert slots[0] == (turn + 1) % 2 and slots[1:].count_nonzero() == 1
    x = torch.zeros(3, 130)
    assert_equal(lambda x, static: run(x, static, slots), text, x)


def test_programs_wait_for_each_other_where_they_run_at_once(interpreted):
    module = interpreted("quantdock_triton.quantize_whole")
    encoding = interpreted("quantdock_triton.encoding").Encoding
    whole = module.WholeQuantizer(encoding(parse_spec("int8[*x*]:dynamic"), 7168, True), False,
                                  True, 132)  # fmt: skip
    assert [whole._rows(m) for m in (2, 18, 19, 64, 144, 145)] == [1, 1, 2, 4, 8, 0]
    whole._together = 6
    assert whole._rows(2) == 0
    whole._together, whole._across = 132, 1
    assert [whole._rows(m) for m in (256, 257)] == [2, 0]


def test_strided_rows_and_zeros(interpreted):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    text = "fp8_e4m3[1x32]:dynamic"
    x = exact_values(text, 10, 256).view(5, 2, 256)[:, 1, 64:224]
    x[2] = 0.0
    assert_equal(quantizer(parse_spec(text), 160), text, x)


def test_nan_makes_the_scale_of_its_tile_nan(interpreted):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    x = exact_values("int8", 6, 128)
    x[2, 40] = float("nan")
    codes, scale = quantizer(parse_spec("int8[1x32]:dynamic"), 128)(x, None)
    expected = quantize(x, parse_spec("int8[1x32]:dynamic"))
    assert torch.equal(scale[:6].isnan(), expected.scale.isnan())
    assert torch.equal(codes[:6], expected.codes)


def test_scales_have_rows_or_columns_side_by_side(interpreted):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    text = "fp8_e4m3[1x32]:dynamic"
    x = exact_values(text, 5, 128)
    for row_major, strides in ((False, (1, 8)), (True, (4, 1))):
        run = quantizer(parse_spec(text), 128, row_major=row_major)
        assert_equal(run, text, x)
        _, scale = run(x, None)
        assert scale.shape == (8, 4) and scale.stride() == strides


@pytest.mark.parametrize("m", [1, 5, 256, 257])
def test_memory_goes_on_behind_codes_up_to_the_end_of_every_tile(interpreted, m):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    codes, _ = quantizer(parse_spec("fp8_e4m3[1x32]:dynamic"), 64)(torch.ones(m, 64), None)
    assert codes.shape == (-(-m // 4) * 4, 64)
    for tall in (8, 16, 64, 128, 256):
        assert claimed_rows(codes, m, tall) == max(-(-m // tall) * tall, m)
    assert claimed_rows(codes[2:], m, 256) == max(-(-m // 256) * 256 - 2, m)
