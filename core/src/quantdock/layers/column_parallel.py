"""Linear layers whose output features are divided among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from quantdock.kernels.quantized_input import QuantizedInput
from quantdock.layers.linear import LinearBase
from quantdock.layers.options import LinearOptions
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division, require_shardable
from quantdock.methods.cut import Cut


class ColumnParallelLinear(LinearBase):
    """Each rank computes some of the output features, from all of the input.

    Args:
        output_size: N, or the sizes of fused shards, each of which is divided by itself.
        gather_output: return the features of all ranks, in the order that one rank alone has.
        divisions: how each shard is divided; empty: its rows stand alone.
        group: the ranks. The rest as for LinearBase.
    Raises:
        ConfigError: a shard cannot be divided among the ranks; lists how many ranks could.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int | Sequence[int],
        bias: bool = True,
        gather_output: bool = False,
        *,
        divisions: Sequence[Division] = (),
        group: ParallelGroup = ALONE,
        **options: Unpack[LinearOptions],
    ) -> None:
        name = options.get("prefix") or type(self).__name__
        sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
        divisions = divisions or [Division(name=name, size=size) for size in sizes]
        require_shardable(divisions, group.size, name)
        cuts = [
            Cut(
                n=division.size,
                k=input_size,
                rows=division.part(group.rank, group.size),
                columns=range(input_size),
            )
            for division in divisions
        ]
        super().__init__(input_size, sizes, bias, cuts=cuts, **options)
        self.group = group
        self.gather_output = gather_output and group.size > 1
        if self.gather_output and group.process_group is not None:
            self.out_features = sum(sizes)

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return [..., this rank's features] for ``input`` [..., K]; [..., N] where gathered."""
        result = super().forward(input)
        if not self.gather_output:
            return result
        shards = torch.split(result, [len(cut.rows) for cut in self.cuts], dim=-1)
        gathered = [self.group.all_gather(shard) for shard in shards]
        return gathered[0] if len(gathered) == 1 else torch.cat(gathered, dim=-1)


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Fused layers such as gate and up: a rank has its rows of the first, then of the second."""
