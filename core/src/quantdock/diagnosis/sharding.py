"""A checkpoint's linear layers divided among ranks: which refuse, and which have tiles cut.

How a layer is divided is what the model's authors say, else what its name suggests.

>>> read_way("model.layers.0.mlp.down_proj", None), read_way("model.layers.0.mlp.up_proj", None)
('columns', 'rows')
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from quantdock.checkpoint.metadata import LANGUAGE_CONFIGS
from quantdock.config import QuantizationConfig
from quantdock.diagnosis.case import Layer
from quantdock.layers.partition import LARGEST_TP, Division, common_blocks, place_of
from quantdock.methods.slot import Slot
from quantdock.schemes import Scheme

Way = Literal["rows", "columns", "whole"]  # what of the weight [N, K] the ranks divide
# Linear layers whose input is divided, by the last component of their names; others divide their
# output.
_COLUMNS = frozenset(
    {"o_proj", "out_proj", "down_proj", "dense_4h_to_h", "c_proj", "fc2", "wo", "w2"}
)
# Words of model authors for layers whose parts are gathered, and must be of one width.
_GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
_OF_QUERIES = frozenset({"q_proj", "o_proj"})
_OF_KEYS = frozenset({"k_proj", "v_proj"})


def read_way(prefix: str, stated: str | None) -> Way:
    """Return what ranks divide of a layer; ``stated`` is the model's word, such as "rowwise"."""
    if stated is not None:
        return "columns" if "rowwise" in stated else "rows" if "colwise" in stated else "whole"
    return "columns" if prefix.rpartition(".")[2] in _COLUMNS else "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads as config.json counts them; None: it does not."""

    queries: int | None = None
    keys: int | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Heads:
        """Return the heads of the language model."""
        for place in (config, *(config.get(name) for name in LANGUAGE_CONFIGS)):
            if isinstance(place, Mapping) and isinstance(place.get("num_attention_heads"), int):
                queries = place["num_attention_heads"]
                keys = place.get("num_key_value_heads")
                return cls(queries=queries, keys=keys if isinstance(keys, int) else queries)
        return cls()

    def division(self, prefix: str, size: int, way: Literal["rows", "columns"]) -> Division:
        """Return how ``size`` rows or columns of a layer are divided; its name is left out."""
        last = prefix.rpartition(".")[2]
        is_keys = last in _OF_KEYS
        heads = self.keys if is_keys else self.queries if last in _OF_QUERIES else None
        if heads is None or heads < 1 or size % heads:
            return Division(name="", size=size, side=way)
        return Division(name="", size=size, side=way, heads=heads, is_shared=is_keys)


class Sharding:
    """The linear layers of a checkpoint, those that are divided alike together."""

    def __init__(
        self,
        layers: Iterable[Layer],
        config: QuantizationConfig,
        heads: Heads,
        ways: Mapping[str, str],
    ) -> None:
        self._alike: dict[tuple[Division, tuple[Slot, ...]], list[str]] = defaultdict(list)
        found = []
        for layer in layers:
            layout, scheme = layer.stored.layout, layer.stored_as.scheme
            way = read_way(layer.prefix, ways.get(layer.prefix))
            shape = config.weight_shape(scheme, layer.facts) if scheme else layout.weight_shape
            if layer.facts.kind != "linear" or len(shape) != 2 or way == "whole":
                continue
            n, k = shape
            slots = config.slots(scheme, n, k, layer.facts) if scheme else ()
            division = heads.division(layer.prefix, n if way == "rows" else k, way)
            tile = _tile(scheme, way) if scheme else None
            found.append((layer.prefix, division, slots, tile))
        blocks = common_blocks((prefix, d.size, tile) for prefix, d, _, tile in found)
        for prefix, division, slots, _ in found:
            is_gathered = ways.get(prefix) in _GATHERED
            block = 1 if is_gathered else blocks[place_of(prefix, division.size)]
            self._alike[replace(division, block=block), slots].append(prefix)

    def refusals(self, size: int) -> Iterator[tuple[str, str]]:
        """Yield (why not, layer) for every layer that ``size`` ranks cannot divide."""
        for (division, _), prefixes in self._alike.items():
            if reason := division.why_not(size):
                yield from ((reason, prefix) for prefix in prefixes)

    def legal_sizes(self) -> list[int]:
        """Return the numbers of ranks that divide every layer."""
        return [size for size in range(1, LARGEST_TP + 1) if not any(self.refusals(size))]

    def divided_inputs(self, size: int) -> dict[str, list[range]]:
        """Return the columns of each rank, for every layer whose input features are divided."""
        return {
            prefix: [division.part(rank, size) for rank in range(size)]
            for (division, _), prefixes in self._alike.items()
            if division.side == "columns" and not division.why_not(size)
            for prefix in prefixes
        }

    def widths(self, size: int) -> Iterator[tuple[str, str, int]]:
        """Yield (layer, "rows" or "columns", how many) of the largest part of each layer."""
        for (division, _), prefixes in self._alike.items():
            if not division.why_not(size):
                width = max(len(division.part(rank, size)) for rank in range(size))
                yield from ((prefix, division.side, width) for prefix in prefixes)

    def cut_tiles(self, size: int) -> Iterator[tuple[str, str]]:
        """Yield (which, layer) where a rank's part begins inside the tile of a scale."""
        for (division, slots), prefixes in self._alike.items():
            if division.why_not(size):
                continue
            parts = [division.part(rank, size) for rank in range(size)]
            for slot in slots:
                tile = slot.row_tile if division.side == "rows" else slot.col_tile
                if tile is not None and (cut := [p for p in parts if p.start % tile]):
                    text = f"parts of {len(cut[0])} {division.side} cut tiles of {tile}"
                    yield from ((f"{text} ({slot.name})", prefix) for prefix in prefixes)


def _tile(scheme: Scheme, way: Way) -> int | None:
    return scheme.weight.rows if way == "rows" else scheme.weight.cols
