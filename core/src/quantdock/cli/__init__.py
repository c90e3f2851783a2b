"""The command line: ``quantdock generate``, ``explain`` and ``plugins``."""
