"""Which ways to compute a product were measured to be the fastest: on this GPU, or by us.

The plugin ships a table for some architectures (``tuned/sm_90.json``). ``quantdock tune`` writes
one into the user's cache, for one kind of GPU and the kernels as they are now; its entries take the
place of those shipped, one by one. Either lists, by form of the operands, layer shape [N, K] and
number of rows, ways with their microseconds, best first.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from quantdock.errors import FormatError
from quantdock.user_cache import user_cache
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import LIBRARIES
from quantdock_cuda.unpacked import UNPACK
from quantdock_triton.tile import Tile, parse_tile

FORMAT = 1
_MANY = 1024  # rows above which the fastest way seldom changes
Way = str | Tile  # the name of a library, or a tile of our kernels
Shape = tuple[int, int]  # N, K
# By name of the form and by shape, the number of rows up to which ways are the fastest.
Table = dict[str, dict[Shape, dict[int, tuple[Way, ...]]]]
Timed = tuple[float, Way]  # microseconds

_log = logging.getLogger("quantdock.cuda.tables")
_SHIPPED_SMS = 132  # multiprocessors of the GPU that the shipped tables were measured on
_PACKAGES = ("quantdock_cuda", "quantdock_triton")
# What computes the ways. With another of these, or of what they import, measurements are no longer
# of the same; but for what only launches, which is not in the time of a CUDA graph.
_ROOTS = (
    "quantdock_cuda.block_libraries",
    "quantdock_cuda.block_matmul",
    "quantdock_cuda.library",
    "quantdock_cuda.unpacked",
    "quantdock_triton.matmul",
)
_LAUNCHERS = frozenset(
    {
        "quantdock_cuda.archs",
        "quantdock_cuda.device",
        "quantdock_triton.launcher",
        "quantdock_triton.raw_launch",
        "quantdock_triton.recording",
        "quantdock_triton.tape",
    }
)
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([\w.]+)(?:\s+import\s+([\w, ]+))?", re.MULTILINE)


class Near(NamedTuple):
    """An entry that comes near to a layer: its shape, its ways, the multiprocessors of the GPU that
    it was measured on, and whether the user made it for operands of that very form."""

    shape: Shape
    ways: tuple[Way, ...]
    num_sms: int
    is_users: bool


@lru_cache(maxsize=16)
def shipped(arch: str) -> Table:
    """Return the table that the plugin brings for an architecture; empty if there is none."""
    file = files("quantdock_cuda").joinpath("tuned", f"{arch}.json")
    return _read_ways(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


@lru_cache(maxsize=64)
def measured(device: Device) -> Table:
    """Return what was measured on GPUs of this kind by this user; empty if nothing was.

    A file that cannot be read, or is of something else, is named in a warning and ignored.
    """
    path = path_of(device)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if {key: stored[key] for key in _head(device)} != _head(device):
            raise FormatError(f"It is of {stored['device']} ({stored['arch']}).")
        return _read_ways(stored["ways"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FormatError) as error:
        text = " ".join(str(error).split())
        _log.warning(
            "%s is ignored: it is no table of `quantdock tune` (%s: %s). Delete it, or tune again.",
            path,
            type(error).__name__,
            text,
        )
        return {}


def nearest(names: Sequence[str], device: Device, shape: Shape, rows: int) -> tuple[Near, ...]:
    """Return the entries for about ``rows`` rows, the nearest shape first; of one, the user's.

    The first name that has any counts.
    """
    for name in names:
        users, ours = measured(device).get(name, {}), shipped(device.arch).get(name, {})
        m = _standing_for(rows, {m for table in (users, ours) for r in table.values() for m in r})
        if m is not None:
            found = {near: by_rows[m] for near, by_rows in ours.items() if m in by_rows}
            own = {near: by_rows[m] for near, by_rows in users.items() if m in by_rows}
            found |= own
            order = sorted(found, key=lambda other: _far(other, shape))
            return tuple(
                Near(
                    shape=s,
                    ways=found[s],
                    num_sms=device.num_sms if s in own else _SHIPPED_SMS,
                    is_users=s in own and name == names[0],
                )
                for s in order
            )
    return ()


def store(device: Device, name: str, shape: Shape, rows: int, ways: Sequence[Timed]) -> Path:
    """Write one measured entry to the user's table, at once and whole; return the file."""
    path = path_of(device)
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = stored["ways"] if measured(device) else {}
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    entry = known.setdefault(name, {}).setdefault("{}x{}".format(*shape), {})
    entry[str(rows)] = [[round(us, 2), str(way)] for us, way in ways]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    text = json.dumps(_head(device) | {"ways": known}, indent=1) + "\n"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
    measured.cache_clear()
    return path


def path_of(device: Device) -> Path:
    """Return the file of the user's table for GPUs of this kind and the kernels as they are."""
    kind = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return user_cache("cuda") / f"{device.arch}-{kind or 'gpu'}-{version()}.json"


def outdated(device: Device) -> list[Path]:
    """Return the user's tables for GPUs of this kind that other kernels were measured for."""
    path = path_of(device)
    kind = path.name.removesuffix(f"{version()}.json")
    return sorted(p for p in path.parent.glob(f"{kind}*.json") if p != path)


@lru_cache(maxsize=1)
def version() -> str:
    """Return what stands for the kernels' sources and the compilers beneath them."""
    total = sha256(f"{torch.__version__} {triton.__version__}".encode())
    for _, source in sorted(sources().items()):
        total.update(source.encode())
    return total.hexdigest()[:12]


def sources() -> dict[str, str]:
    """Return the modules that decide how fast a way is, by name: what computes, and its imports."""
    found: dict[str, str] = {}
    left = [*_ROOTS]
    while left:
        name = left.pop()
        if name in found or name in _LAUNCHERS or (source := _read(name)) is None:
            continue
        found[name] = source
        for module, names in _IMPORT.findall(source):
            if module.partition(".")[0] in _PACKAGES:
                left += [module, *(f"{module}.{part.strip()}" for part in names.split(","))]
    return found


def _read(module: str) -> str | None:
    """Return the source of a module of these packages; None for what is none."""
    package, _, name = module.partition(".")
    file = files(package).joinpath(*name.split(".")[:-1], f"{name.rpartition('.')[2]}.py")
    return file.read_text(encoding="utf-8") if name and file.is_file() else None


def _head(device: Device) -> dict[str, object]:
    return {"format": FORMAT, "device": device.name, "arch": device.arch, "kernels": version()}


def _read_ways(stored: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]) -> Table:
    return {
        name: {
            _shape(shape): {int(m): tuple(_way(w) for _, w in ways) for m, ways in by_rows.items()}
            for shape, by_rows in shapes.items()
        }
        for name, shapes in stored.items()
    }


def _way(text: str) -> Way:
    return text if text in LIBRARIES or text == UNPACK else parse_tile(text)


def _shape(text: str) -> Shape:
    n, _, k = text.partition("x")
    return int(n), int(k)


def _standing_for(rows: int, known: set[int]) -> int | None:
    """Return the measured number of rows that stands for another; None if none comes near."""
    most = max(known, default=0)
    last = [most] if rows > most >= _MANY else []
    return next((m for m in (rows, 2 * rows, *last) if m in known), None)


def _far(one: Shape, other: Shape) -> float:
    return abs(log2(one[0] / other[0])) + abs(log2(one[1] / other[1]))
