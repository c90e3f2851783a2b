"""Schemes and decisions: what a layer's weights and activations are, and why."""

from quantdock.schemes.decision import Decision
from quantdock.schemes.layer_facts import LayerFacts, StoredTensor
from quantdock.schemes.scheme import Scheme, parse_scheme

__all__ = ["Decision", "LayerFacts", "Scheme", "StoredTensor", "parse_scheme"]
