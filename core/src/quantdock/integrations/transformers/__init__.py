"""Quantized models of the transformers library: ``load`` returns one ready for ``generate``."""

from quantdock.integrations.transformers.loader import load
from quantdock.integrations.transformers.reloading import reload

__all__ = ["load", "reload"]
