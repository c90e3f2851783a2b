"""Norms and gates that write codes, under Triton's interpreter; int8, which it rounds rightly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quantdock.formats import parse_spec
from quantdock.kernels.plain_input import rms_norm
from quantdock.numerics import quantize
from quantdock_triton.normalize import lanes_of

SPECS = (
    "int8[1x*]:dynamic",
    "int8[1x32]:dynamic",
    "int8[1x96]:dynamic",
    "int8[*x*]:dynamic",
    "int8[*x*]",
)
EPS = 1e-6


def assert_near(found, scale, value, text, static):
    """Codes and scales may differ in the last bit of f32 that was rounded, and a code by one."""
    expected = quantize(value, parse_spec(text), scale=None if static is None else static.amax())
    m = value.shape[0]
    off = (found[:m].int() - expected.codes.int()).abs()
    assert off.max() <= 1 and off.float().mean() < 1e-3
    torch.testing.assert_close(scale if "[*x*]" in text else scale[:m], expected.scale)


def static_of(text):
    return None if "dynamic" in text else torch.tensor([0.02, 0.03, 0.01])


@pytest.mark.parametrize("text", SPECS)
def test_norms(interpreted, text):
    normalizer = interpreted("quantdock_triton.normalize").normalizer
    static = static_of(text)
    for m, k in ((1, 96), (5, 1100)):
        run = normalizer(parse_spec(text), k, 0 if static is None else 3)
        x, residual, weight = torch.randn(m, 2 * k)[:, :k], torch.randn(m, k), torch.randn(k)
        codes, scale, total = run(x, weight, EPS, static, None)
        assert total is x
        assert_near(codes, scale, rms_norm(x, weight, EPS), text, static)
        codes, scale, total = run(x, weight, EPS, static, residual)
        assert torch.equal(total, x + residual)
        assert_near(codes, scale, rms_norm(x + residual, weight, EPS), text, static)


def test_scales_that_are_stored_at_once(interpreted):
    text = "int8[1x32]:dynamic"
    module = interpreted("quantdock_triton.normalize")
    names = module.normalize_rows.arg_names
    for m, k in ((1, 96), (3, 1100), (2, 4096)):
        run = module.normalizer(parse_spec(text), k)
        for launcher in run._launchers.values():
            constants = list(launcher._constants)
            constants[names.index("LANES") - len(names)] = 4
            launcher._constants = tuple(constants)
        x, weight = torch.randn(m, k), torch.randn(k)
        codes, scale, _ = run(x, weight, EPS, None, None)
        assert_near(codes, scale, rms_norm(x, weight, EPS), text, None)


@pytest.mark.parametrize(
    "size, num_pieces, warps, lanes",
    [(128, 7, 4, 16), (128, 6, 4, 0), (64, 8, 4, 8), (32, 7, 4, 0), (128, 7, 8, 0), (0, 7, 4, 0)],
)
def test_how_many_threads_store_the_scales_of_a_group(size, num_pieces, warps, lanes):
    assert lanes_of(size, num_pieces, warps) == lanes


@pytest.mark.parametrize("text", SPECS)
def test_gates(interpreted, text):
    quantizer = interpreted("quantdock_triton.quantize").quantizer
    static = static_of(text)
    for m, k in ((1, 96), (5, 300), (2, 2200)):
        run = quantizer(parse_spec(text), k, 0 if static is None else 3, False, True)
        x = 3 * torch.randn(m, 2 * k)
        assert_near(*run(x, static), F.silu(x[:, :k]) * x[:, k:], text, static)
