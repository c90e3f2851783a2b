"""The canonical weight of one layer, read from its file again, and pieces of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quantdock.config import QuantizationConfig
from quantdock.diagnosis.case import Case, Layer
from quantdock.loading.sources import Sources
from quantdock.methods.pending import PendingWeights
from quantdock.methods.slot import Slot
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import LayerFacts, Scheme

_PIECE = 1 << 22  # weights that are worked on at once: 32 MiB in float64


def read_weight(
    config: QuantizationConfig,
    scheme: Scheme,
    facts: LayerFacts,
    shards: Sequence[tuple[Slot, ...]],
    sources: Sources,
) -> CanonicalWeight:
    """Return what the files hold of a layer; ``shards`` are the slots of each of its shards.

    Raises:
        LoadError: a tensor is missing or does not fit.
        FormatError: what is stored cannot be decoded.
    """
    pending = PendingWeights(facts.prefix, shards)
    for shard, prefix in enumerate(facts.shards or (facts.prefix,)):
        under = sources.under(prefix)
        for slot in shards[shard]:
            name = slot.stored_as(under)
            if name is not None:
                pending.add(slot.name, sources.read(f"{prefix}.{name}"), shard)
    return config.decode(scheme, pending.take(), facts)


def read_layer(case: Case, layer: Layer, sources: Sources) -> CanonicalWeight:
    """Return what the files hold of one layer of a case, as the config reads it.

    Raises:
        LoadError: a tensor is missing or does not fit.
        FormatError: what is stored cannot be decoded.
    """
    scheme, config = layer.stored_as.scheme, case.setting.config
    assert scheme is not None, "whoever reads a layer has looked"
    n, k = config.weight_shape(scheme, layer.facts)
    slots = config.slots(scheme, n, k, layer.facts)
    return read_weight(config, scheme, layer.facts, [slots], sources)


def row_pieces(weight: CanonicalWeight) -> Iterator[tuple[slice, CanonicalWeight]]:
    """Yield (rows, their weight) until all rows were yielded; no piece cuts a tile."""
    start = 0
    for segment in weight.segments:
        n, k = segment.codes.shape
        tile = segment.spec.rows
        step = max(_PIECE // max(k, 1), 1)
        step = max(step // tile, 1) * tile if tile else step
        for first in range(0, n, step):
            last = min(first + step, n)
            tiles = slice(None) if tile is None else slice(first // tile, -(-last // tile))
            piece = replace(
                segment,
                codes=segment.codes[first:last],
                scale=segment.scale[tiles],
                zero=None if segment.zero is None else segment.zero[tiles],
            )
            rows = slice(start + first, start + last)
            yield rows, replace(weight, segments=(piece,))
        start += n
