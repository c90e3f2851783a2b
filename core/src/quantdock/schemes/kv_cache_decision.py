"""KVCacheDecision: what becomes of keys and values, and why. Never None."""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.schemes.kv_cache_spec import KVCacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheDecision:
    """A spec, or "in the model's dtype because ..."; ``source`` is where it is written.

    ``from_file``: the scales that the checkpoint stores belong to this spec.
    """

    spec: KVCacheSpec | None = None
    because: str
    source: str
    from_file: bool = False


UNSTATED = KVCacheDecision(
    because="nothing asks for a quantized KV cache", source="the checkpoint and the user"
)
