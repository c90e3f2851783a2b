"""Widened weights under Triton's interpreter, beside the definition."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import dequantize, quantize
from quantdock_triton.tile import Form

SPECS = ("fp8_e4m3[1x*]", "fp8_e4m3[*x*]", "fp8_e4m3[128x128]", "fp8_e5m2[1x64]", "int8[1x*]")


@pytest.mark.parametrize("text", SPECS)
def test_equals_the_definition(interpreted, text):
    spec, n, k = parse_spec(text), 150, 330
    weight = quantize(torch.randn(n, k), spec)
    form = Form(
        weight_cols=spec.cols or 0,
        weight_rows=spec.rows or 1,
        element=spec.element,
        weight_only=True,
    )
    widen = interpreted("quantdock_triton.widen").widener(form, n, k)
    found = widen(weight.codes, weight.scale, torch.float32)
    assert torch.equal(found, dequantize(weight.codes, weight.scale, spec))
