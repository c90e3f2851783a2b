"""The checkpoint as layers: which tensors lie under each prefix, and who has used them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from quantdock.checkpoint.expert_scales import homes
from quantdock.checkpoint.header import TensorEntry
from quantdock.loading.memory import MemoryKeeper
from quantdock.loading.reader import num_bytes, read_tensor
from quantdock.loading.staged import Stage, stage_for
from quantdock.schemes import StoredTensor


class Sources:
    """Reads tensors by layer and keeps the ledger of what was read.

    ``tensors`` maps checkpoint names to their entries.
    """

    def __init__(self, tensors: Mapping[str, TensorEntry]) -> None:
        self.tensors = tensors
        self.memory = MemoryKeeper()
        self._stages: dict[torch.device, Stage | None] = {}
        self._used: set[str] = set()
        self._parts: dict[str, TensorEntry] = {}
        self._turned: dict[str, TensorEntry] = {}  # parts that are stored transposed
        self._under: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
        moved = homes(tensors)
        for name, entry in tensors.items():
            prefix, _, last = name.rpartition(".")
            if name in moved:
                self.add_part(f"{moved[name]}.{last}", entry)
            else:
                self._under[prefix][last] = entry

    def under(self, prefix: str) -> Mapping[str, TensorEntry]:
        """Return the entries directly under ``prefix`` by the last part of their name."""
        return self._under.get(prefix, {})

    def stored(self, prefix: str) -> dict[str, StoredTensor]:
        """Return what the headers say lies under ``prefix``, for LayerFacts."""
        return {last: entry.stored for last, entry in self.under(prefix).items()}

    def add_part(self, name: str, entry: TensorEntry) -> None:
        """Let ``name`` be read as a tensor of its own: ``entry``, bytes of the one it names."""
        self._parts[name] = entry
        prefix, _, last = name.rpartition(".")
        self._under[prefix][last] = entry

    def add_transposed(self, name: str, entry: TensorEntry) -> None:
        """Let ``name`` be read as the transpose of ``entry``, a part [K, N] of a tensor."""
        self._turned[name] = entry
        self.add_part(name, entry._replace(shape=entry.shape[::-1]))

    def entry(self, name: str) -> TensorEntry | None:
        """Return where ``name`` is stored, as a tensor or as a part of one; None: nowhere."""
        return self._parts.get(name) or self.tensors.get(name)

    def read(
        self, name: str, device: torch.device | str = "cpu", region: Sequence[slice] = ()
    ) -> Tensor:
        """Return one tensor, or a region of it, and note that it was used."""
        entry = self._parts.get(name) or self.tensors[name]
        self._used.add(entry.name)
        self.memory.note(num_bytes(entry, region))
        stage = self._stage(torch.device(device))
        if name in self._turned:
            turned = read_tensor(self._turned[name], device, region[::-1], stage)
            return turned.t().contiguous()
        return read_tensor(entry, device, region, stage)

    def _stage(self, device: torch.device) -> Stage | None:
        numbered = torch.empty(0, device=device).device  # without a number: the current one
        if numbered not in self._stages:
            self._stages[numbered] = stage_for(numbered)
        return self._stages[numbered]

    def mark(self, names: Iterable[str]) -> None:
        """Note that ``names`` were used or are accounted for."""
        self._used.update(names)

    def left_over(self) -> list[str]:
        """Return the tensors nothing has read, in file order."""
        return [name for name in self.tensors if name not in self._used]
