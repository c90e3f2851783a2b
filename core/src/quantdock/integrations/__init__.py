"""Where QuantDock meets other libraries."""
