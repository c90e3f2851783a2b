"""Fused queries, keys and values, divided by heads."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from torch import Tensor

from quantdock.layers.column_parallel import ColumnParallelLinear
from quantdock.layers.options import LinearOptions
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division
from quantdock.methods.pending import Loader, attach_loader, loader_of

_LETTERS: dict[object, object] = {"q": 0, "k": 1, "v": 2}


class QKVParallelLinear(ColumnParallelLinear):
    """Shards 0, 1 and 2 are queries, keys and values, also called q, k and v; a head is never cut.

    Where there are more ranks than heads of keys and values, several ranks hold the same head.

    Args:
        head_size: rows of one head. total_num_heads: heads of queries on all ranks.
        total_num_kv_heads: heads of keys, and of values; None: as many as of queries.
    Attributes:
        num_heads, num_kv_heads: on this rank.
    Raises:
        ConfigError: the heads cannot be divided among the ranks; lists how many ranks could.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        *,
        group: ParallelGroup = ALONE,
        **options: Unpack[LinearOptions],
    ) -> None:
        name = options.get("prefix") or type(self).__name__
        kv_heads = total_num_kv_heads or total_num_heads
        divisions = [
            Division(
                name=f"{name} ({part})", size=heads * head_size, heads=heads, is_shared=is_shared
            )
            for part, heads, is_shared in (
                ("queries", total_num_heads, False),
                ("keys", kv_heads, True),
                ("values", kv_heads, True),
            )
        ]
        sizes = [division.size for division in divisions]
        super().__init__(hidden_size, sizes, bias, divisions=divisions, group=group, **options)
        self.num_heads, self.num_kv_heads, _ = (len(cut.rows) // head_size for cut in self.cuts)
        for parameter in self.parameters(recurse=False):
            attach_loader(parameter, partial(_load, loader_of(parameter)))


def _load(load: Loader, parameter: Tensor, loaded: Tensor, shard: int | str = 0) -> None:
    """Load a shard by its number, or by the letter that engines have for it."""
    load(parameter, loaded, _LETTERS.get(shard, shard))
