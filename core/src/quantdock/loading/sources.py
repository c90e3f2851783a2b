"""The checkpoint as layers: which tensors lie under each prefix, and who has used them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import torch
from torch import Tensor

from quantdock.checkpoint.expert_scales import homes
from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.errors import LoadError
from quantdock.loading.memory import MemoryKeeper
from quantdock.loading.reader import num_bytes, read_tensor
from quantdock.schemes import StoredTensor


class Sources:
    """Reads tensors by layer and keeps the ledger of what was read.

    ``tensors`` maps checkpoint names to their entries.
    """

    def __init__(self, tensors: Mapping[str, TensorEntry]) -> None:
        self.tensors = tensors
        self.memory = MemoryKeeper()
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
        if name in self._turned:
            return read_tensor(self._turned[name], device, region[::-1]).t().contiguous()
        return read_tensor(entry, device, region)

    def mark(self, names: Iterable[str]) -> None:
        """Note that ``names`` were used or are accounted for."""
        self._used.update(names)

    def left_over(self) -> list[str]:
        """Return the tensors nothing has read, in file order."""
        return [name for name in self.tensors if name not in self._used]

    def check_left_over(self, built: Iterable[str]) -> None:
        """Refuse quantization tensors that lie beside a built layer and were not read.

        Tensors of modules that were not built may stay unread; the plan lists them.

        Raises:
            LoadError: names tensor, layer and the nearest name that layers take.
        """
        prefixes = set(built)
        bad = [
            name
            for name in self.left_over()
            if name.rpartition(".")[0] in prefixes
            and is_quantization_tensor(name, self.tensors[name].dtype)
            and not is_kv_scale(name)
        ]
        if bad:
            more = [f"and {len(bad) - 8} more"] if len(bad) > 8 else []
            raise LoadError(
                f"{len(bad)} quantization tensors of the checkpoint belong to layers that were "
                "built and were not used.",
                why=[*map(_describe, bad[:8]), *more],
                todo="Its method is not the one it says; see `quantdock explain`.",
                names=tuple(bad),
            )


def _describe(name: str) -> str:
    prefix, _, last = name.rpartition(".")
    near = get_close_matches(last, ["weight", "weight_scale", "weight_scale_inv", "input_scale"], 1)
    hint = f"; the nearest name that layers take is {near[0]}" if near else ""
    return f"{name} (layer {prefix}){hint}"
