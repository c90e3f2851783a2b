"""The fastest ways to compute one product: each is measured, the best of them again and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from quantdock_cuda.tables import Timed, Way
from quantdock_cuda.tiling import SMALL
from quantdock_cuda.tuning.operands import Operands
from quantdock_triton.tile import Tile

COPY_ENGINE = 1.03  # describing operands to it takes the host time: where few rows make it matter
KEPT = 3  # ways that a table lists for each number of rows, besides a tile if none is among them
LARGEST_ERROR = 1e-2  # of a product, beside f32 (Frobenius)
_AGAIN = 6  # ways that are measured twice
_REPLAYS, _MORE_REPLAYS = 3, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Ways with their microseconds, best first; a tile is among them. And what failed, and why."""

    best: tuple[Timed, ...]
    times: dict[Way, float]
    failures: tuple[str, ...]


def search(case: Operands, ways: Iterable[Way], advance: Callable[[int], object]) -> Found:
    """Return the fastest of ``ways``; ``advance`` is told of each.

    Raises:
        RuntimeError: not one tile could be measured.
    """
    times: dict[Way, float] = {}
    failures = []
    for way in ways:
        try:
            times[way] = case.time(way, _REPLAYS)
        except Exception as error:  # of a compiler, a driver, a library of others
            failures.append(f"{way}: {type(error).__name__}: {' '.join(str(error).split())[:100]}")
            torch.cuda.synchronize()
        advance(1)

    def cost(way: Way) -> float:
        takes_longer = case.m <= SMALL and isinstance(way, Tile) and way.tma
        return times[way] * (COPY_ENGINE if takes_longer else 1.0)

    ranked = sorted(times, key=cost)
    right = []
    for way in dict.fromkeys((*ranked[:_AGAIN], *_tiles(ranked)[:1])):
        off = case.error(way)
        if off <= LARGEST_ERROR:
            times[way] = case.time(way, _MORE_REPLAYS)
            right.append(way)
        else:
            failures.append(f"{way}: off by {off:.1e}")
    best = sorted(right, key=cost)
    if not _tiles(best):
        raise RuntimeError(f"no tile can be measured: {'; '.join(failures[:3])}")
    kept = dict.fromkeys((*best[:KEPT], _tiles(best)[0]))
    timed = tuple((times[way], way) for way in kept)
    return Found(best=timed, times=times, failures=tuple(failures))


def _tiles(ways: Iterable[Way]) -> list[Tile]:
    return [way for way in ways if isinstance(way, Tile)]
