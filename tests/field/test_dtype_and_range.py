"""Ranges of the field: S25, S44, S45 - sums in float32, saturation, NaN where it was."""

from __future__ import annotations

import pytest
import torch

import quantdock
from quantdock.formats import parse_spec
from quantdock.numerics import quantize
from toy_llama import (
    BLOCK,
    DOWN,
    STATIC,
    TENSOR,
    Q,
    codes,
    llama,
    load,
    logits,
    make_layer,
    run,
    with_input_scales,
    write,
)

CHANNEL = {"quant_method": "w8a8_fp8"}


@pytest.mark.parametrize("tile", ["*x*", "1x*", "128x128"])
def test_s25_float16_sums_beyond_its_range_come_back_finite(tmp_path, tile):
    """Weight 1.344 as 448 * 0.003, x 8.0: the unscaled sum is 1.5e7, the result 44040."""
    tensors = llama(tile, intermediate=4096)
    scale = "weight_scale_inv" if tile == "128x128" else "weight_scale"
    tensors[f"{DOWN}.weight"] = codes(256, 4096, 448.0)
    tensors[f"{DOWN}.{scale}"] = torch.full_like(tensors[f"{DOWN}.{scale}"], 0.003)
    block = BLOCK if tile == "128x128" else TENSOR
    folder = write(tmp_path, tensors, block, intermediate_size=4096)
    model = load(folder, dtype="float16")
    x = torch.full((2, 4096), 8.0, dtype=torch.float16)
    y = run(model, DOWN, x)
    assert y.dtype == torch.float16
    assert y.float().flatten().tolist() == pytest.approx([44040.0] * 512, rel=5e-3)
    assert run(model, DOWN, 2 * x).isposinf().all(), "an honest overflow, never NaN"


@pytest.mark.parametrize("name", ["modelopt_fp4", "petit_nvfp4"])
def test_s25_two_levels_of_scales_in_float16(name):
    """Weight 1.344 as 6 * 448 * 0.0005, x 8.0: the unscaled sum is 8.8e7, the result 44040."""
    tensors = {
        "weight": torch.full((16, 2048), 0x77, dtype=torch.uint8),
        "weight_scale": torch.full((16, 256), 448.0).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.0005),
        "input_scale": torch.tensor(16 / (6 * 448)),
    }
    block = {"quant_algo": "NVFP4"}
    layer = make_layer(block, 4096, [tensors], name=name, dtype=torch.float16, sizes=[16])
    x = torch.full((2, 4096), 8.0, dtype=torch.float16)
    y = layer(x)
    assert y.dtype == torch.float16
    assert y.float().flatten().tolist() == pytest.approx([44040.0] * 32, rel=5e-3)
    assert layer(2 * x).isposinf().all(), "an honest overflow, never NaN"


@pytest.mark.parametrize("method", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"])
def test_s25_a_model_in_float16_is_finite_and_near_its_float32_self(tmp_path, method):
    folder = write(tmp_path, llama())
    half, full = (logits(load(folder, method, dtype=d)).float() for d in ("float16", "float32"))
    assert half.isfinite().all()
    # Rounding moves activations to other codes; measured: 0.04 to 0.07.
    assert ((half - full).norm() / full.norm()).item() < 0.15


def test_s25_a_file_known_as_bfloat16_that_runs_in_float16_is_told(tmp_path):
    folder = write(tmp_path, llama("128x128"), BLOCK)

    def told(plan):
        return [w for w in plan.warnings if "states bfloat16, and float16 is used" in w]

    assert told(load(folder, dtype="float16").quantdock_plan)
    for dtype in ("bfloat16", "float32", "auto"):
        assert not told(load(folder, dtype=dtype).quantdock_plan)
    assert told(quantdock.explain(folder, platform="cuda:sm_75"))
    assert not told(quantdock.explain(folder, platform="cuda:sm_90"))


def test_s44_a_static_scale_saturates_and_nan_stays_in_its_row(tmp_path):
    tensors = with_input_scales(llama("*x*"), 2.0**-7)
    tensors |= {
        f"{Q}.weight": torch.eye(256).to(torch.float8_e4m3fn),
        f"{Q}.weight_scale": torch.tensor(1.0),
    }
    model = load(write(tmp_path, tensors, STATIC))
    rows = torch.tensor([1.0, 10.0, -torch.inf, torch.nan, 2.0])
    y = run(model, Q, rows[:, None].repeat(1, 256))
    assert [row.unique().tolist() for row in y[[0, 1, 2, 4]]] == [[1.0], [3.5], [-3.5], [2.0]]
    assert y[3].isnan().all()


@pytest.mark.parametrize("block", [TENSOR, BLOCK, CHANNEL])
def test_s44_nan_in_one_token_leaves_the_others_alone(tmp_path, block):
    tile = {0: "*x*", 1: "128x128", 2: "1x*"}[[TENSOR, BLOCK, CHANNEL].index(block)]
    model = load(write(tmp_path, llama(tile), block))
    x = torch.randn(3, 256)
    expected = run(model, Q, x)
    x[1, 7] = torch.nan
    y = run(model, Q, x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("k", [4096, 65_536, 262_144])
def test_s45_long_sums_do_not_drift_however_they_are_split(k):
    signs = torch.tensor([1.0, -1.0]).repeat(k // 2).expand(16, k)
    stored = {"weight_scale": torch.tensor(1.0), "input_scale": torch.tensor(2.0**-8)}
    x = 1 + 0.01 * torch.randn(2, k, generator=torch.Generator().manual_seed(k))
    spec = parse_spec("fp8_e4m3[*x*]")
    rows = quantize(x, spec, torch.tensor(2.0**-8)).codes.double() * 2.0**-8
    expected = rows @ signs.double().T
    allowed = 2.0**-8 * expected.abs() + 2.0**-20 * rows.abs().sum(1, keepdim=True)

    def partial(part):
        weight = {"weight": signs[:, part].to(torch.float8_e4m3fn), **stored}
        return make_layer(STATIC, weight["weight"].shape[1], [weight])(x[:, part])

    for cut in (0, k // 2, 3 * k // 4):  # whole, and as ranks of unequal size would add it up
        result = sum(partial(p) for p in (slice(0, cut), slice(cut, k)) if p.stop > p.start)
        assert bool(((result.double() - expected).abs() <= allowed).all()), cut
