"""Measuring which way to compute a product is the fastest, on this GPU."""
