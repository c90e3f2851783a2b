"""The product kernel under Triton's interpreter, on codes that torch made, beside f64."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import dequantize, quantize
from quantdock_triton.tile import Form, parse_tile

B, A = "fp8_e4m3[128x128]", "fp8_e4m3[1x128]:dynamic"
ROW, TOKEN = "fp8_e4m3[1x*]", "fp8_e4m3[1x*]:dynamic"
MX = "fp8_e4m3[1x32]:e8m0:ceil"
CASES = (
    # weight, activation, M, N, K, tile
    (ROW, TOKEN, 3, 70, 160, "16x32x32 swap"),
    (ROW, TOKEN, 1, 70, 160, "16x32x32 parts=3 swap"),
    (ROW, TOKEN, 33, 70, 160, "32x32x64 band=2"),
    ("fp8_e4m3[*x*]", "fp8_e4m3[*x*]:dynamic", 17, 70, 160, "32x32x64"),
    (B, A, 33, 300, 330, "16x64x128 parts=2 swap"),
    (B, A, 33, 300, 330, "32x64x128"),
    (B, A, 5, 300, 336, "16x64x128 parts=2 swap tma"),
    (B, A, 33, 300, 336, "32x256x128 tma"),
    (MX, MX + ":dynamic", 5, 70, 160, "16x32x128 swap"),
    (ROW, A, 5, 70, 260, "16x32x128 swap"),
    (B, TOKEN, 5, 170, 260, "16x32x128 swap"),
    ("fp8_e4m3[96x96]", "fp8_e4m3[1x96]:dynamic", 5, 170, 260, "16x32x128"),
    ("int8[1x*]", "int8[1x*]:dynamic", 5, 70, 160, "16x32x64 parts=2 swap"),
    ("int8[128x128]", "int8[1x128]:dynamic", 5, 170, 260, "16x32x128 parts=2 swap"),
    ("int8[1x*]", "int8[1x64]:dynamic", 5, 70, 160, "16x32x64"),
    (B, None, 5, 170, 260, "16x32x128 swap"),
    ("fp8_e5m2[1x*]", None, 5, 170, 260, "16x32x128"),
    ("int8[*x*]", None, 5, 70, 96, "16x32x32 parts=2 swap"),
)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("weight, activation, m, n, k, text", CASES)
def test_product(interpreted, weight, activation, m, n, k, text, has_bias):
    spec, x_spec = parse_spec(weight), parse_spec(activation) if activation else None
    w, x = quantize(torch.randn(n, k), spec), torch.randn(m, k)
    codes, x_scale, exact = x, None, x
    if x_spec:
        made = quantize(x, x_spec)
        codes, x_scale = made.codes, made.scale
        exact = dequantize(codes, x_scale, x_spec)
    expected = exact.double() @ dequantize(w.codes, w.scale, spec).double().T
    bias = torch.randn(n) if has_bias else None
    expected = expected if bias is None else expected + bias
    form = Form(
        x_cols=x_spec.cols or 0 if x_spec else 0,
        weight_cols=spec.cols or 0,
        weight_rows=spec.rows or 1,
        element=spec.element,
        weight_only=x_spec is None,
    )
    module = interpreted("quantdock_triton.matmul")
    out = torch.full((m, n), torch.nan)
    counters = torch.zeros(module.NUM_COUNTERS, dtype=torch.int32)
    run = module.matmul(form, parse_tile(text), n, k, has_bias)
    run(codes, x_scale, w.codes, w.scale, bias, out, counters)
    assert (out - expected).norm() / expected.norm() < 1e-6
    assert not counters.any()


def test_without_counters_sums_are_not_divided(interpreted):
    module = interpreted("quantdock_triton.matmul")
    w, x = quantize(torch.randn(64, 128), parse_spec(ROW)), torch.randn(2, 128)
    out = torch.empty(2, 64)
    form = Form(weight_only=True)
    run = module.matmul(form, parse_tile("16x32x32 parts=4 swap"), 64, 128, False)
    run(x, None, w.codes, w.scale, None, out, None)
    expected = x @ dequantize(w.codes, w.scale, parse_spec(ROW)).T
    assert (out - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize(
    "m, text, tall, more, described",
    [
        (5, "16x64x128 parts=2 swap tma", 16, 0, 8),  # x ends
        (5, "16x64x128 parts=2 swap tma", 16, 40, 16),
        (33, "32x256x128 tma", 32, 40, 64),
        (33, "32x256x128 tma", 32, 9, 45),
    ],
)
def test_rows_behind_x_are_in_no_result(interpreted, m, text, tall, more, described):
    n, k = 300, 336
    rows = -(-m // 4) * 4
    module = interpreted("quantdock_triton.matmul")
    w, x = quantize(torch.randn(n, k), parse_spec(B)), quantize(torch.randn(rows, k), parse_spec(A))
    memory = torch.full((rows + more, k), 0x7F, dtype=torch.uint8)  # NaN
    memory[:rows] = x.codes.view(torch.uint8)
    behind = memory.view(x.codes.dtype)[:rows]
    assert module.claimed_rows(behind, m, tall) == described
    form = Form(x_cols=128, weight_cols=128, weight_rows=128)
    run = module.matmul(form, parse_tile(text), n, k, False)
    results = []
    for codes in (x.codes, behind):
        counters = torch.zeros(module.NUM_COUNTERS, dtype=torch.int32)
        results.append(torch.full((m, n), torch.nan))
        run(codes, x.scale, w.codes, w.scale, None, results[-1], counters)
    assert results[0].isfinite().all()
    assert torch.equal(*results)
