"""Converting checkpoints: 16-bit folders into quantized ones that others read too, and back."""
