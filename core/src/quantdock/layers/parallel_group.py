"""ParallelGroup: the ranks that hold the parts of one model, and how they exchange results.

>>> ParallelGroup(rank=1, size=2)  # by hand: the caller combines what the ranks' layers return
ParallelGroup(rank=1, size=2, process_group=None)
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Self

import torch.distributed as dist
from torch import Tensor

from quantdock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelGroup:
    """One rank of ``size``; collectives go through ``process_group``.

    Without a process group the ranks are made by hand, such as all of them in one process: layers
    then return their part, and the caller combines the parts.
    """

    rank: int = 0
    size: int = 1
    process_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        are_counts = isinstance(self.rank, Integral) and isinstance(self.size, Integral)
        if not are_counts or not 0 <= self.rank < self.size:
            raise ConfigError(
                f"There is no rank {self.rank!r} among {self.size!r}.",
                why=["ranks count from 0"],
                todo="Give a rank below the size.",
                field="rank",
            )

    @classmethod
    def of(cls, process_group: dist.ProcessGroup | None = None) -> Self:
        """Return this process's rank in ``process_group``; None: torch's default group.

        Raises:
            ConfigError: torch.distributed is not initialised.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "torch.distributed has no process group.",
                why=["a group of ranks is made from one"],
                todo="Start with torchrun and call torch.distributed.init_process_group first.",
            )
        group = process_group or dist.group.WORLD
        return cls(rank=dist.get_rank(group), size=dist.get_world_size(group), process_group=group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' ``x``, which may be overwritten."""
        if self.size > 1 and self.process_group is not None:
            x = x.contiguous()
            dist.all_reduce(x, group=self.process_group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Return all ranks' ``x`` [..., n], joined along the last dimension: [..., size * n]."""
        if self.size == 1 or self.process_group is None:
            return x
        # The second name is what torch called it before 2.13.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        parts = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        gather(parts, x.contiguous(), group=self.process_group)
        return parts.view(self.size, *x.shape).movedim(0, -2).flatten(-2)


ALONE = ParallelGroup()
