"""Quantized keys and values: scales, codes, and stores that grow token by token."""

from quantdock.kv_cache.codec import KVCodec
from quantdock.kv_cache.fixed_store import FixedStore
from quantdock.kv_cache.make import make_codec
from quantdock.kv_cache.scales import KVScale, KVScales
from quantdock.kv_cache.store import TokenStore

__all__ = ["FixedStore", "KVCodec", "KVScale", "KVScales", "TokenStore", "make_codec"]
