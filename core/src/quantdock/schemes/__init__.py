"""Schemes and decisions: what a layer's weights and activations are, and why."""

from quantdock.schemes.decision import Decision
from quantdock.schemes.layer_facts import LayerFacts, StoredTensor
from quantdock.schemes.scheme import Scheme, parse_scheme
from quantdock.schemes.scheme_set import SchemeSet, SpecSet

__all__ = [
    "Decision",
    "LayerFacts",
    "Scheme",
    "SchemeSet",
    "SpecSet",
    "StoredTensor",
    "parse_scheme",
]
