"""x86 CPUs for QuantDock, with AMX and without."""

__version__ = "0.1.0"
