"""Intel GPUs for QuantDock."""

__version__ = "0.1.0"
