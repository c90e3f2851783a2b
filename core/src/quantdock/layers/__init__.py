"""Layers that know their shape and their method; the method knows quantization."""

from quantdock.layers.linear import LinearBase, ReplicatedLinear

__all__ = ["LinearBase", "ReplicatedLinear"]
