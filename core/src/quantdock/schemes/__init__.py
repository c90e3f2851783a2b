"""Schemes and decisions: what a layer's weights and activations are, and why."""

from quantdock.schemes.decision import Decision
from quantdock.schemes.kv_cache_decision import UNSTATED, KVCacheDecision
from quantdock.schemes.kv_cache_spec import KVCacheSpec, dynamic_kv_spec, parse_kv_element
from quantdock.schemes.layer_facts import Kind, LayerFacts, StoredTensor
from quantdock.schemes.scheme import Scheme, parse_scheme
from quantdock.schemes.scheme_set import SchemeSet, SpecSet

__all__ = [
    "UNSTATED",
    "Decision",
    "KVCacheDecision",
    "KVCacheSpec",
    "Kind",
    "LayerFacts",
    "Scheme",
    "SchemeSet",
    "SpecSet",
    "StoredTensor",
    "dynamic_kv_spec",
    "parse_kv_element",
    "parse_scheme",
]
