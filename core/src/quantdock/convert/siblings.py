"""Layers that engines run as one product, and that therefore share their second scale in files.

>>> from quantdock.schemes import parse_scheme
>>> nv = parse_scheme("fp4_e2m1[1x16]:e4m3:second[*x*]")
>>> siblings({"a.q_proj": nv, "a.k_proj": nv, "a.o_proj": nv, "b.k_proj": nv})
{'a.q_proj': ('a.q_proj', 'a.k_proj'), 'a.k_proj': ('a.q_proj', 'a.k_proj')}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from quantdock.configs.matcher import FUSION
from quantdock.schemes import Scheme

_FUSED = {shard: fused for fused, shards in FUSION.items() for shard in shards}
_FUSED |= dict.fromkeys(("w1", "w3"), "w13")  # gate and up of Mixtral's experts


def siblings(layers: Mapping[str, Scheme]) -> dict[str, tuple[str, ...]]:
    """Return the layers that share a second scale with each one that shares its own.

    Args:
        layers: prefix -> scheme.
    """
    groups: dict[object, list[str]] = defaultdict(list)
    for prefix, scheme in layers.items():
        parent, _, last = prefix.rpartition(".")
        if scheme.weight.second is not None and last in _FUSED:
            groups[parent, _FUSED[last], scheme.weight].append(prefix)
    shared = (tuple(group) for group in groups.values() if len(group) > 1)
    return {prefix: group for group in shared for prefix in group}
