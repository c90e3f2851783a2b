"""One matrix, w13 or w2, of the experts that a rank holds: what files have, what kernels see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quantdock.kernels.column_order import have_equal_groups
from quantdock.methods.expert_shape import Cuts
from quantdock.methods.pending import PendingWeights
from quantdock.numerics.dtypes import dtype_name
from quantdock.problem import Problem
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    import torch

    from quantdock.numerics.canonical import CanonicalWeight


@dataclass(slots=True)
class Matrix:
    """One matrix, w13 or w2, of the experts that this rank holds, as files have it."""

    name: str
    scheme: Scheme
    sizes: tuple[int, ...]  # output features of each stored shard
    cuts: Cuts  # this rank's part
    facts: tuple[tuple[LayerFacts, ...], ...]  # of each expert, of each shard
    pending: list[PendingWeights]
    finished: set[int] = field(default_factory=set)
    equal_groups: bool | None = None  # as the first expert's groups in act-order are

    def problem(self, dtype: torch.dtype, repacked: bool | None, promised: bool) -> Problem:
        """Return the matrix as a linear layer is seen by kernels."""
        cut = self.cuts[0][1]
        spec = self.scheme.weight
        return Problem(
            scheme=cut.scheme(self.scheme),
            n=sum(len(part.rows) for _, part in self.cuts),
            k=len(cut.columns),
            shards=tuple(n for _, part in self.cuts for n in part.segments(spec)),
            dtype=dtype_name(dtype),
            repacked=repacked,
            equal_groups=self.equal_groups,
            promised=promised,
        )

    def learn(self, weight: CanonicalWeight) -> bool:
        """Return whether ``weight``, of the first expert, shows what may ask for another kernel."""
        self.equal_groups = have_equal_groups(weight)
        return self.equal_groups is False
