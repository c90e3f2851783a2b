"""What is known about one layer when its config decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The kinds of layer a config must answer for.
Kind = Literal["linear", "embedding", "head", "experts", "attention"]
# Linear layers that choose experts: rounding them changes which experts run.
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as its file's header describes it.

    ``values`` are those of a tensor that states the shape of another; empty: they were not read.
    """

    dtype: str  # key of formats.DTYPES
    shape: tuple[int, ...]
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One layer: where it stands, what it is, what the checkpoint stores under it.

    ``stored`` maps the part of a tensor's name after the prefix ("weight", "weight_scale_inv") to
    its header entry; None means that no header was read (a plan from the JSON alone). ``shards``
    are the prefixes that a fused layer gathers, in order; empty for a layer of its own. ``aliases``
    are other names of the same layer, such as the runtime's where the checkpoint's differs.
    """

    prefix: str
    kind: Kind = "linear"
    class_names: tuple[str, ...] = ("Linear",)
    shards: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    stored: Mapping[str, StoredTensor] | None = None

    @property
    def is_router(self) -> bool:
        """Return whether the layer chooses experts, by its name; it stays exact everywhere."""
        return is_router(self.prefix)


def is_router(prefix: str) -> bool:
    """Return whether a layer of this name chooses experts; some routers are modules around it.

    >>> is_router("layers.0.mlp.gate"), is_router("layers.0.mlp.router.layer")
    (True, True)
    """
    return not _ROUTERS.isdisjoint(prefix.split(".")[-2:])
