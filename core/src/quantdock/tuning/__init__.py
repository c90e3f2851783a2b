"""What ``quantdock tune`` does: find the layers to measure, and have their ways measured."""

from quantdock.tuning.layers import LayerToTune, layers_of_checkpoint, layers_of_shapes

__all__ = ["LayerToTune", "layers_of_checkpoint", "layers_of_shapes"]
