"""The checkpoint dialects: one class per method name, from JSON to a decision for each layer."""
