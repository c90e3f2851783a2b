"""Quantized models of the transformers library: ``load`` returns one ready for ``generate``."""

from quantdock.integrations.transformers.loader import load

__all__ = ["load"]
