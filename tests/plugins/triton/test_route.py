"""Tiles of pairs that are sorted by expert, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


def rows_of_tile(plan, order, experts, out, num_experts, num_tiles, top_k, TILE_OF: tl.constexpr,
                 DIRECT: tl.constexpr, GATHERS: tl.constexpr, TILE_M: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    expert, rows, _, _ = TILE_OF(plan, order, tile, num_experts, num_tiles, top_k, DIRECT, GATHERS,
                                 False, TILE_M)  # fmt: skip
    tl.store(experts + tile, expert)
    tl.store(out + tile * TILE_M + tl.arange(0, TILE_M), rows)


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("directly", [True, False])
def test_no_row_is_read_that_x_does_not_have(interpreted, directly, gathers):
    route = interpreted("quantdock_triton.route")
    tile_of = interpreted("quantdock_triton.route_kernel").tile_of
    ids = torch.tensor([[3, 1], [4, 4], [0, 2]])
    made = (route.route_directly if directly else route.route)(ids, 5, 16)
    rows = torch.full((made.num_tiles, 16), -1)
    experts = torch.full((made.num_tiles,), -2)
    triton.jit(rows_of_tile)[(made.num_tiles,)](
        made.plan, made.order, experts, rows, 4, made.num_tiles, 2, tile_of, directly, gathers, 16
    )
    used = rows[experts >= 0]
    assert used.min() >= 0 and used.max() == (2 if gathers else 5)
    if directly:  # expert 4 is another rank's
        assert experts.tolist() == [3, 1, -1, -1, 0, 2]
    else:
        assert experts[:5].tolist() == [0, 1, 2, 3, 4] and (experts[5:] == -1).all()
