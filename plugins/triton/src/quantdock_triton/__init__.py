"""Triton kernels that several plugins of QuantDock offer. Importing this loads no Triton."""

__version__ = "0.1.0"
