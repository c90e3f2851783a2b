"""Tensors that arrived for a layer and are not finished yet: the layer's part of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from quantdock.errors import LoadError
from quantdock.methods.cut import Region
from quantdock.methods.header_faults import tensor_faults
from quantdock.methods.slot import Slot
from quantdock.numerics.dtypes import dtype_name
from quantdock.schemes import StoredTensor

Loader = Callable[..., None]


def attach_loader(parameter: Tensor, loader: Loader) -> None:
    """Give ``parameter`` the ``weight_loader(parameter, loaded, shard)`` that engines call."""
    parameter.weight_loader = loader  # type: ignore[attr-defined]


def loader_of(parameter: Tensor) -> Loader:
    """Return what ``attach_loader`` gave ``parameter``."""
    loader: Loader = parameter.weight_loader  # type: ignore[attr-defined]
    return loader


def require_shard(name: str, shard: int, count: int) -> None:
    """Raise LoadError if ``name``, a parameter of a layer of ``count`` shards, has none such."""
    if shard not in range(count):
        raise LoadError(
            f"{name} was loaded for shard {shard!r}.",
            why=[f"the layer's shards are {', '.join(map(str, range(count)))}"],
            todo="Pass one of them as weight_loader(parameter, loaded, shard).",
        )


def unfinished(name: str) -> LoadError:
    """Return the error for the layer ``name``, which is called before its weights are ready."""
    return LoadError(
        f"{name} was called before its weights were ready.",
        why=["its tensors wait to be decoded, or have not arrived"],
        todo="Load them all (parameter.weight_loader), and call "
        "layer.quant_method.process_weights_after_loading(layer).",
    )


class PendingWeights:
    """What has arrived for each shard of one layer; nothing else may be decoded.

    Tensors arrive whole, as files have them. Where ``parts`` says so (slot name -> region, per
    shard), only a rank's part of them is kept.
    """

    def __init__(
        self,
        name: str,
        slots: Sequence[tuple[Slot, ...]],
        parts: Sequence[Mapping[str, Region]] = (),
    ) -> None:
        self.name = name  # of the layer, for errors
        self.slots = tuple(slots)  # per shard
        self.parts = tuple(parts) or ({},) * len(self.slots)
        self._arrived: list[dict[str, Tensor]] = [{} for _ in self.slots]
        # Slot name -> how the file spells it, per shard, of all that has ever arrived.
        self.spelled: tuple[dict[str, str], ...] = tuple({} for _ in self.slots)

    def add(self, name: str, tensor: Tensor, shard: int = 0) -> None:
        """Keep what is needed of ``tensor``, the whole slot ``name`` of ``shard``.

        Raises:
            LoadError: no such slot, or a shape, dtype that the slot does not take.
        """
        slot = self._slot(name, shard)
        self.spelled[shard][slot.name] = name
        whole = _fitted(tensor, slot, self.name)
        region = self.parts[shard].get(slot.name, ())
        self._arrived[shard][slot.name] = whole[region].clone() if region else whole

    def add_part(self, name: str, part: Tensor, shard: int = 0) -> None:
        """Keep ``part``, which is the region that ``parts`` names of a tensor of the slot's shape.

        Raises:
            LoadError: no such slot, or a dtype that the slot does not take.
        """
        slot = self._slot(name, shard)
        self.spelled[shard][slot.name] = name
        _require_fit(part.dtype, slot.shape, slot, self.name)
        self._arrived[shard][slot.name] = part

    def take(self) -> list[Mapping[str, Tensor]]:
        """Return one mapping (slot name -> tensor) a shard, defaults filled in, and forget them.

        Raises:
            LoadError: a slot without a default got no tensor.
        """
        missing = [
            self._spell(slot, shard)
            for shard, slots in enumerate(self.slots)
            for slot in slots
            if slot.default is None and slot.name not in self._arrived[shard]
        ]
        if missing:
            raise LoadError(
                f"{self.name}: {len(missing)} of its tensors were not loaded.",
                why=missing,
                todo="The checkpoint is incomplete, or was written by another method than it says.",
                names=tuple(missing),
            )
        full: list[Mapping[str, Tensor]] = [
            {
                slot.name: arrived[slot.name]
                if slot.name in arrived
                else _default(slot)[parts.get(slot.name, ())]
                for slot in slots
            }
            for slots, parts, arrived in zip(self.slots, self.parts, self._arrived, strict=True)
        ]
        self._arrived = [{} for _ in self.slots]
        return full

    def fresh(self) -> PendingWeights:
        """Return an empty one of the same slots, to look at tensors that are not loaded."""
        return PendingWeights(self.name, self.slots, self.parts)

    def discard(self) -> None:
        """Forget what has arrived: a load failed, and the layer keeps the weights it has."""
        self._arrived = [{} for _ in self.slots]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has arrived since the last ``take``."""
        return not any(self._arrived)

    @property
    def device(self) -> torch.device | None:
        """Return where the tensors that arrived are; None if none has."""
        return next((t.device for shard in self._arrived for t in shard.values()), None)

    def move(self, device: torch.device) -> None:
        """Move all that has arrived to ``device``."""
        self._arrived = [
            {name: tensor.to(device) for name, tensor in shard.items()} for shard in self._arrived
        ]

    def _slot(self, name: str, shard: int) -> Slot:
        require_shard(f"{self.name}.{name}", shard, len(self.slots))
        slot = next((s for s in self.slots[shard] if name in s.spellings), None)
        if slot is None:
            known = ", ".join(s.name for s in self.slots[shard])
            raise LoadError(
                f"{self.name}.{name}: the layer has no slot of that name.",
                why=[f"it takes {known}"],
                todo="Check the method the checkpoint is loaded with.",
            )
        return slot

    def _spell(self, slot: Slot, shard: int) -> str:
        where = f" of shard {shard}" if len(self.slots) > 1 else ""
        others = f", also spelled {', '.join(slot.aliases)}" if slot.aliases else ""
        return f"missing {self.name}.{slot.name}{where}{others}"


def _default(slot: Slot) -> Tensor:
    assert slot.default is not None, "take() refuses a missing slot without a default"
    return torch.full(slot.shape, slot.default, dtype=torch.float32)


def _fitted(tensor: Tensor, slot: Slot, prefix: str) -> Tensor:
    """Return ``tensor`` in the slot's shape; shapes of equal count in the slot's list are equal."""
    _require_fit(tensor.dtype, tuple(tensor.shape), slot, prefix)
    return tensor.reshape(slot.shape)


def _require_fit(dtype: torch.dtype, shape: tuple[int, ...], slot: Slot, prefix: str) -> None:
    tensor = StoredTensor(dtype=dtype_name(dtype), shape=shape)
    faults = tuple(tensor_faults(slot.name, slot, tensor))
    if faults:
        raise LoadError(
            f"{prefix}.{slot.name} does not fit the layer.",
            why=[str(fault) for fault in faults],
            todo="Load the checkpoint that belongs to this model's config.",
        )
