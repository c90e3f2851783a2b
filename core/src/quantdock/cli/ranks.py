"""The ranks that torchrun starts: one process each, of which this is one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quantdock.errors import ConfigError, QuantDockError

_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What torchrun says to each process; ``local`` counts the ranks of one machine."""

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def is_first(self) -> bool:
        """Return whether this is the rank that talks to the user."""
        return self.rank == 0


def read_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks torchrun says that there are."""
    size = environment.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() else 1


def read_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's rank; alone where nothing says otherwise.

    Raises:
        ConfigError: there are several ranks and no place for them to meet.
    """
    size = read_size(environment)
    if size == 1 or not environment.get("RANK"):
        return Ranks()
    missing = [name for name in _MEETING_PLACE if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {size}, and {' and '.join(missing)} is not set.",
            why=["ranks meet at an address and port that all of them know"],
            todo="Start with torchrun --nproc-per-node N -m quantdock ..., or unset WORLD_SIZE.",
        )
    local = int(environment.get("LOCAL_RANK") or 0)
    return Ranks(rank=int(environment["RANK"]), size=size, local=local)


@contextmanager
def joined(ranks: Ranks, device: str, platform: str | None) -> Iterator[dict[str, Any]]:
    """Meet the other ranks; yield the options of ``load`` that say where this one is.

    On an accelerator each rank of a machine takes the device of its number.
    """
    if ranks.size == 1:
        yield {"device": device}
        return
    import torch
    import torch.distributed as dist

    from quantdock.integrations.transformers.place import choose_place, torch_device
    from quantdock.layers import ParallelGroup

    place = torch_device(device, choose_place(device, platform))
    backend = dist.get_default_backend_for_device(place)
    own = None
    if place.type != "cpu":
        own = place = torch.device(place.type, ranks.local if place.index is None else place.index)
        torch.accelerator.set_device_index(own)
    dist.init_process_group(backend, device_id=own)
    try:
        yield {"device": place, "tp": ParallelGroup.of()}
    except QuantDockError:
        # Most errors are every rank's; torchrun ends the others once the first has told its own.
        if not ranks.is_first:
            time.sleep(_PATIENCE_S)
        raise
    dist.destroy_process_group()
