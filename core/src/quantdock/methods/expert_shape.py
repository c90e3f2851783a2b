"""The sizes of the experts of one layer, and which part of them one rank holds.

Ranks divide experts in two ways: each holds some of the experts, or some of every expert's I
features, which are rows of gate, the same rows of up, and columns of w2.

>>> shape = ExpertShape(
...     num_experts=8, hidden_size=256, intermediate_size=192, w13_sizes=(192, 192),
...     features=range(96, 192),
... )
>>> [len(cut.rows) for _, cut in shape.w13_cuts], shape.w2_cuts[0][1].columns
([96, 96], range(96, 192))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from quantdock.formats import QuantSpec
from quantdock.methods.cut import Cut, Region, parts_of
from quantdock.methods.slot import Slot
from quantdock.numerics.canonical import CanonicalWeight, join
from quantdock.numerics.cut import cut_columns, cut_rows

W13Order = Literal["gate_up", "interleaved", "up"]
Cuts = tuple[tuple[int, Cut], ...]  # of a stored shard, what of it; in the order of w13's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Sizes of a layer's experts.

    Attributes:
        w13_sizes: output features of each stored shard of w13: (I, I), or (2I,) where both are in
            one, or (I,) without a gate.
        w13_order: of the rows of w13.
        held: the experts that this rank has; None: all.
        features: of the I features of every expert, those that this rank has; None: all.
        top_k: experts a token is sent to; None: not known.
    """

    num_experts: int
    hidden_size: int
    intermediate_size: int
    w13_sizes: tuple[int, ...]
    w13_order: W13Order = "gate_up"
    has_bias: bool = False
    top_k: int | None = None
    held: range | None = None
    features: range | None = None

    @property
    def own_experts(self) -> range:
        """Return the numbers of the experts that this rank has."""
        return range(self.num_experts) if self.held is None else self.held

    @property
    def own_features(self) -> range:
        """Return the I features that this rank has."""
        return range(self.intermediate_size) if self.features is None else self.features

    @property
    def w13_cuts(self) -> Cuts:
        """Return this rank's part of each stored shard of w13; of one in two parts, both."""
        i, k, part, sizes = self.intermediate_size, self.hidden_size, self.features, self.w13_sizes
        if part is None:
            return tuple((shard, Cut.whole(n, k)) for shard, n in enumerate(sizes))
        start, stop = part.start, part.stop
        places = [(shard, start, stop) for shard, _ in enumerate(sizes)]
        if self.w13_order == "interleaved":
            places = [(0, 2 * start, 2 * stop)]
        elif sizes == (2 * i,):
            places = [(0, start, stop), (0, i + start, i + stop)]
        return tuple(
            (shard, Cut(n=sizes[shard], k=k, rows=range(top, end), columns=range(k)))
            for shard, top, end in places
        )

    @property
    def w2_cuts(self) -> Cuts:
        """Return this rank's part of w2."""
        n, k = self.hidden_size, self.intermediate_size
        return ((0, Cut(n=n, k=k, rows=range(n), columns=self.own_features)),)

    def __str__(self) -> str:
        """Return which part this rank holds; empty: all."""
        held = {"experts": (self.held, self.num_experts)}
        held["features of each expert"] = (self.features, self.intermediate_size)
        return ", ".join(
            f"{word} {part.start}-{part.stop - 1} of {size}"
            for word, (part, size) in held.items()
            if part is not None
        )


def regions_of(
    slots: Sequence[tuple[Slot, ...]], cuts: Cuts, spec: QuantSpec, *, is_online: bool
) -> list[dict[str, Region]]:
    """Return what of each slot need be kept, per stored shard; empty: all, to be cut later."""
    if len(cuts) != len(slots) or all(cut.is_whole for _, cut in cuts):
        return []
    parts = [
        parts_of(shard, cut, spec, is_online=is_online)
        for shard, (_, cut) in zip(slots, cuts, strict=True)
    ]
    known = [regions for regions in parts if regions is not None]
    return known if len(known) == len(parts) else []


def cut_matrix(weight: CanonicalWeight, sizes: Sequence[int], cuts: Cuts) -> CanonicalWeight:
    """Return the part of w13 or w2 that ``cuts`` describe; ``sizes`` are those of its shards."""
    if all(cut.is_whole for _, cut in cuts):
        return weight
    tops = list(accumulate(sizes, initial=0))
    parts = [
        cut_rows(weight, tops[shard] + cut.rows.start, tops[shard] + cut.rows.stop)
        for shard, cut in cuts
    ]
    columns = cuts[0][1].columns
    joined = replace(join(parts), value_steps=weight.value_steps)
    return cut_columns(joined, columns.start, columns.stop)
