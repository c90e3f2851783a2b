"""Ranks: which exist, and what collectives do with and without a process group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from quantdock.errors import ConfigError
from quantdock.layers import ColumnParallelLinear, ParallelGroup, RowParallelLinear
from toy_ranks import config_of, filled, stored, values


def test_one_rank_alone_is_the_default_and_exchanges_nothing():
    group = ParallelGroup()
    x = values(3)
    assert (group.rank, group.size) == (0, 1)
    assert group.all_reduce(x) is x and group.all_gather(x) is x


def test_by_hand_the_caller_combines():
    x = values(3)
    group = ParallelGroup(rank=1, size=2)
    assert group.all_reduce(x) is x and group.all_gather(x) is x


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), ("0", 2), (0, 2.5)])
def test_a_rank_that_does_not_exist_is_refused(rank, size):
    with pytest.raises(ConfigError, match=f"no rank {rank!r} among {size!r}"):
        ParallelGroup(rank=rank, size=size)


def test_a_rank_may_be_a_number_of_another_library():
    assert ParallelGroup(rank=np.int64(1), size=np.int64(2)) == ParallelGroup(rank=1, size=2)


def test_without_torch_distributed_the_error_says_what_to_call():
    with pytest.raises(ConfigError, match="init_process_group"):
        ParallelGroup.of()


@pytest.fixture
def fake_group():
    """A group of two whose collectives do nothing: enough to trace."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield ParallelGroup.of()
    dist.destroy_process_group()


def test_collectives_are_traced_without_a_break(fake_group):
    up = ColumnParallelLinear(
        64, 192, gather_output=True, quant_config=config_of("block"), group=fake_group
    )
    down = RowParallelLinear(192, 64, quant_config=config_of("block"), group=fake_group)
    filled(up, [stored("block", 192, 64) | {"bias": values(192)}])
    filled(down, [stored("block", 64, 192) | {"bias": values(64)}])

    def run(x):
        return down(up(x)[..., :96])

    with torch.no_grad():
        compiled = torch.compile(run, backend="eager", fullgraph=True)
        assert compiled(values(2, 64)).shape == (2, 64)
        assert up(values(2, 64)).shape == (2, 192)
        assert up.out_features == 192
