"""The demo: one trained language model, unquantized and quantized, measured side by side."""
