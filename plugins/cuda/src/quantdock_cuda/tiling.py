"""Which way a product is computed: a measured table, the nearest entry of it, or a rule.

The table of an architecture (``tuned/sm_90.json``) lists the fastest ways for layer shapes and
numbers of rows, best first. Another shape takes those of the nearest one, with as many parts of
each sum as keep about as many programs at work.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from math import log2

from quantdock_cuda.device import Device
from quantdock_triton.tile import Form, Tile, parse_tile

LIBRARY = "library"  # torch's own product; of weights alone, after widening them
BLOCK = Form(x_cols=128, weight_cols=128, weight_rows=128)
_NAMES = {Form(): "row", BLOCK: "block"}
_FOR_TMA = frozenset({"tma"})
_FOR_ROLES = frozenset({"tma", "wgmma"})
_LEAST_STEPS = 4  # of a part of a sum

# By name of the form and by (N, K), the number of rows up to which ways are the fastest.
Table = dict[str, dict[tuple[int, int], dict[int, tuple[str, ...]]]]


@lru_cache(maxsize=16)
def table_of(arch: str) -> Table:
    """Return the measured table of an architecture; empty if there is none."""
    file = files("quantdock_cuda").joinpath("tuned", f"{arch}.json")
    if not file.is_file():
        return {}
    stored = json.loads(file.read_text(encoding="utf-8"))
    return {
        name: {
            _shape(shape): {int(m): tuple(way for _, way in ways) for m, ways in by_rows.items()}
            for shape, by_rows in shapes.items()
        }
        for name, shapes in stored.items()
    }


def bucket(m: int) -> int:
    """Return the number of rows that stands for ``m``: the next power of two, or 16 at least."""
    return max(16, 1 << (m - 1).bit_length()) if m > 1 else 1


@lru_cache(maxsize=1 << 14)
def ways(form: Form, device: Device, n: int, k: int, m: int) -> tuple[str | Tile, ...]:
    """Return the ways to compute ``m`` rows of a layer [N, K], best first; the last always can."""
    shapes = table_of(device.arch).get(_NAMES.get(form, ""), {})
    found: list[str | Tile] = []
    if shapes:
        near = min(shapes, key=lambda shape: _distance(shape, (n, k)))
        rows = min((r for r in shapes[near] if r >= m), default=max(shapes[near]))
        for way in shapes[near][rows]:
            found.append(way if way == LIBRARY else _moved(parse_tile(way), near, (n, k), m))
    elif m > 128:
        found.append(LIBRARY)
    return (*found, rule(form, device, n, k, m))


def rule(form: Form, device: Device, n: int, k: int, m: int) -> Tile:
    """Return a tile that runs on every device, from sizes alone."""
    if m > 128:
        large = -(-m // 128) * -(-n // 128) >= device.num_sms
        tile = Tile(m=128 if large else 64, n=128 if large else 64, k=128, warps=8 if large else 4)
        tile = replace(tile, k=64 if form.weight_only else 128)
    else:
        height = max(16, min(64, 1 << (m - 1).bit_length()))
        tile = Tile(m=height, n=64, k=128, stages=6, swap=True)
        num_tiles = -(-m // height) * -(-n // 64)
        steps = -(-k // form.block_k(128))
        parts = min(round(1.5 * device.num_sms / num_tiles), steps // _LEAST_STEPS, 8)
        tile = replace(tile, parts=max(parts, 1))
    return tile.fitted(form, device.shared_bytes - 4096)


def needs(tile: Tile) -> frozenset[str]:
    """Return the features of a GPU without which a tile cannot run."""
    if tile.roles:
        return _FOR_ROLES
    return _FOR_TMA if tile.tma else frozenset()


def _moved(tile: Tile, near: tuple[int, int], shape: tuple[int, int], m: int) -> Tile:
    """Return the tile of one layer shape for another: sums are divided as the programs need."""
    if near == shape or tile.parts == 1:
        return tile
    tall = -(-near[0] // tile.n), -(-shape[0] // tile.n)
    parts = min(round(tile.parts * tall[0] / tall[1]), shape[1] // (_LEAST_STEPS * tile.k))
    return replace(tile, parts=max(parts, 1))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(log2(one[0] / other[0])) + abs(log2(one[1] / other[1]))


def _shape(text: str) -> tuple[int, int]:
    n, _, k = text.partition("x")
    return int(n), int(k)
