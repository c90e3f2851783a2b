"""Shapes of the field: S09, S43 - partial blocks, and blocks that never span two parts."""

from __future__ import annotations

import pytest
import torch

from toy_llama import (
    BLOCK,
    DOWN,
    GATE,
    UP,
    codes,
    dense,
    llama,
    load,
    make_layer,
    run,
    write,
)

GRID = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def expand(scale, n, k):
    return scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]


@pytest.mark.parametrize("intermediate", [192, 320])
def test_s09_a_width_that_is_no_multiple_of_the_block(tmp_path, intermediate):
    """One rank; layers that are cut among ranks come with tensor parallelism."""
    tensors = llama("128x128", intermediate)
    generator = torch.Generator().manual_seed(5)
    expected = {}
    for name, (n, k) in {
        GATE: (intermediate, 256),
        UP: (intermediate, 256),
        DOWN: (256, intermediate),
    }.items():
        grid = torch.arange(1.0, 1 + -(-n // 128) * -(-k // 128)).view(-(-n // 128), -1)
        stored = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
        tensors |= {f"{name}.weight": stored, f"{name}.weight_scale_inv": grid}
        expected[name] = stored.float() * expand(grid, n, k)
    folder = write(tmp_path, tensors, BLOCK, intermediate_size=intermediate)
    for name, weight in expected.items():
        assert torch.equal(dense(folder, name), weight)
    model = load(folder)
    for name, weight in expected.items():
        x = 448 * torch.eye(weight.shape[1])  # one value a token: its scale is 1, so exact
        assert torch.equal(run(model, name, x) / 448, weight.T)


def test_s43_parts_of_a_merged_layer_whose_last_block_is_ragged():
    parts = [
        {"weight": codes(256, 256), "weight_scale_inv": GRID},
        {"weight": codes(192, 256), "weight_scale_inv": 10 * GRID},
    ]
    result = make_layer(BLOCK, 256, parts)(torch.ones(1, 256))[0]
    expected = torch.cat([expand(GRID, 256, 256), expand(10 * GRID, 192, 256)]).sum(1)
    assert torch.allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["fp8_per_block", "fp8_per_tensor", "fp8_per_channel", "mxfp8"])
def test_s43_no_scale_spans_two_parts(method):
    """Four parts of 192 rows: a block across a border would flush the smaller one to zero."""
    sizes = [10.0 ** (6 * part) for part in range(4)]
    parts = [{"weight": torch.full((192, 256), value)} for value in sizes]
    layer = make_layer(None, 256, parts, name=method)
    result = layer(torch.ones(1, 256))[0].view(4, 192) / 256
    for row, value in zip(result, sizes, strict=True):
        assert ((row - value).abs() / value).max() < 0.07
    scale = layer.weight_scale
    assert scale.shape[0] in (768, 768 // 64), "a part's last block is its own"
