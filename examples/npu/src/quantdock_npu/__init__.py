"""An imaginary NPU for QuantDock; its tensors live on torch's CPU."""
