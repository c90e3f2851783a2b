"""Reading a checkpoint's metadata: headers, index, the quantization block. Without torch."""

from quantdock.checkpoint.header import TensorEntry, read_header
from quantdock.checkpoint.index import Checkpoint, open_checkpoint
from quantdock.checkpoint.metadata import QuantizationBlock, find_quantization

__all__ = [
    "Checkpoint",
    "QuantizationBlock",
    "TensorEntry",
    "find_quantization",
    "open_checkpoint",
    "read_header",
]
