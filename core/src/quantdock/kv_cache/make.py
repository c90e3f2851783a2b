"""Which codec keeps keys or values: by their element, and by whether a scale is stored."""

from __future__ import annotations

from quantdock.kv_cache.codec import KVCodec
from quantdock.kv_cache.group_codec import ELEMENT, GroupCodec
from quantdock.kv_cache.scales import KVScale
from quantdock.kv_cache.two_level_codec import TwoLevelCodec


def make_codec(element: str, scale: KVScale | None) -> KVCodec:
    """Return what encodes keys or values as ``element``; fp4 computes scales for groups.

    Args:
        scale: static; of fp4, the one above those of groups.
    """
    if element != ELEMENT:
        return KVCodec(element, scale)
    return GroupCodec() if scale is None else TwoLevelCodec(scale)
