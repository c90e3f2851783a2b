"""Cut: which part of a layer's weight one rank holds, and what that means for what is stored.

>>> from quantdock.formats import parse_spec
>>> cut = Cut(n=704, k=256, rows=range(352, 704), columns=range(256))
>>> scale = Slot(name="scale", shapes=((6, 2),), dtypes=("float32",), row_tile=128, col_tile=128)
>>> cut.part_of(scale) is None, cut.segments(parse_spec("fp8_e4m3[128x128]"))
(True, (32, 320))
>>> Cut(n=704, k=256, rows=range(384, 704), columns=range(256)).part_of(scale)
(slice(3, 6, None), slice(0, 2, None))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from quantdock.formats import QuantSpec
from quantdock.methods.slot import Slot
from quantdock.numerics.canonical import CanonicalWeight, join
from quantdock.numerics.cut import cut_columns, cut_rows, narrowed, pieces
from quantdock.schemes import Scheme

# Slices of a stored tensor's dimensions; none at all where the tensor is taken whole.
Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of a file's plain tensor of ``shape`` a rank's parameter holds."""

    shape: tuple[int, ...]
    region: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The rows and columns of one shard [n, k] of a layer that a rank holds."""

    n: int
    k: int
    rows: range
    columns: range

    @classmethod
    def whole(cls, n: int, k: int) -> Cut:
        """Return all of a shard [n, k]."""
        return cls(n=n, k=k, rows=range(n), columns=range(k))

    @property
    def is_whole(self) -> bool:
        """Return whether the rank holds all of the shard."""
        return self.rows == range(self.n) and self.columns == range(self.k)

    @property
    def region(self) -> Region:
        """Return where the part lies in a plain weight [n, k]."""
        return _tiles(self.rows, 1), _tiles(self.columns, 1)

    def part(self, dimensions: int) -> Part:
        """Return the part of a plain weight [n, k], or with one dimension of a bias [n]."""
        return Part(shape=(self.n, self.k)[:dimensions], region=self.region[:dimensions])

    def scheme(self, scheme: Scheme) -> Scheme:
        """Return what the part is encoded in: as the whole, unless columns are cut inside a tile.

        Activations in groups of a tile's width then follow the narrower tile.
        """
        weight = narrowed(scheme.weight, self.columns.start)
        activation = scheme.activation
        if activation is not None and activation.cols == scheme.weight.cols:
            activation = replace(activation, cols=weight.cols)
        return replace(scheme, weight=weight, activation=activation)

    def segments(self, spec: QuantSpec) -> tuple[int, ...]:
        """Return the rows of each segment that ``numerics.cut_rows`` makes of the shard."""
        spans = pieces(self.rows.start, self.rows.stop, spec.rows)
        return tuple(stop - start for start, stop in spans)

    def part_of(self, slot: Slot) -> Region | None:
        """Return what of a stored tensor the part needs; None: it begins inside an entry's tile.

        None too where the tensor is no grid of tiles, such as packed words or a permutation.
        """
        tall, wide = slot.row_tile, slot.col_tile
        if tall is None and wide is None:
            return ()
        is_grid = slot.shape == (-(-self.n // (tall or self.n)), -(-self.k // (wide or self.k)))
        if not is_grid or self.rows.start % (tall or 1) or self.columns.start % (wide or 1):
            return None
        return _tiles(self.rows, tall or self.n), _tiles(self.columns, wide or self.k)

    def splits(self, spec: QuantSpec) -> bool:
        """Return whether the part begins or ends inside of what ``spec`` gives one scale."""
        levels = (spec,) if spec.second is None else (spec, spec.second)
        sides = [
            side
            for level in levels
            for side in ((level.rows, self.rows, self.n), (level.cols, self.columns, self.k))
        ]
        return any(
            border % (tile or size) > 0 and border != size
            for tile, kept, size in sides
            for border in (kept.start, kept.stop)
        )

    def __str__(self) -> str:
        whole = {"rows": (self.rows, self.n), "columns": (self.columns, self.k)}
        return ", ".join(
            f"{word} {kept.start}-{kept.stop - 1} of {size}"
            for word, (kept, size) in whole.items()
            if kept != range(size)
        )


def parts_of(
    slots: Sequence[Slot], cut: Cut, spec: QuantSpec, *, is_online: bool
) -> dict[str, Region] | None:
    """Return what of each stored tensor ``cut`` needs so that decoding it gives the cut's values.

    None: all must be decoded and the result cut. That is always right; this is what saves reading.

    Args:
        is_online: scales are made from the weight, so a scale needs all that it covers.
    """
    regions = {slot.name: cut.part_of(slot) for slot in slots}
    if is_online and cut.splits(spec):
        return None
    known = {name: region for name, region in regions.items() if region is not None}
    return known if len(known) == len(regions) else None


def cut_weight(weight: CanonicalWeight, cuts: Sequence[Cut]) -> CanonicalWeight:
    """Return the part of a layer's whole weight that ``cuts`` describe, one for each shard."""
    if all(cut.is_whole for cut in cuts):
        return weight
    tops = accumulate((cut.n for cut in cuts), initial=0)
    parts = [
        cut_rows(weight, top + cut.rows.start, top + cut.rows.stop)
        for top, cut in zip(tops, cuts, strict=False)
    ]
    columns = cuts[0].columns
    joined = replace(join(parts), value_steps=weight.value_steps)
    return cut_columns(joined, columns.start, columns.stop)


def _tiles(kept: range, tile: int) -> slice:
    """Return the tiles that rows or columns lie in; ``kept`` begins with a tile."""
    return slice(kept.start // tile, -(-kept.stop // tile))
