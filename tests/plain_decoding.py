"""Packed integers decoded by the formulas of their formats alone, bit by bit, in numpy.

Nothing of QuantDock's is used here, so that what it writes is read by other code than its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

# Which column of eight the nibbles of an AWQ word hold, lowest first.
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def stream(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return ``count`` codes a row of int32 [rows, words]: one stream of bits, lowest first."""
    raw = np.ascontiguousarray(words).astype("<i4").view(np.uint8).reshape(len(words), -1)
    flat = np.unpackbits(raw, axis=1, bitorder="little")[:, : count * bits]
    return flat.reshape(len(words), count, bits) @ (1 << np.arange(bits))


def gptq(layer: Mapping[str, Tensor], bits: int, v2: bool) -> Tensor:
    """Return the weight [N, K] of a GPTQ layer: scale * (code - zero), in float32."""
    index, scales = layer["g_idx"].long(), layer["scales"].float().T
    n, k = scales.shape[0], len(index)
    codes = torch.tensor(stream(layer["qweight"].numpy().T, bits, k))
    zeros = torch.tensor(stream(layer["qzeros"].numpy(), bits, n)).T
    zeros = zeros if v2 else (zeros + 1) % (1 << bits)
    return scales[:, index] * (codes - zeros[:, index]).float()


def awq(layer: Mapping[str, Tensor], group: int) -> Tensor:
    """Return the weight [N, K] of an AWQ layer in its "gemm" layout, in float32."""
    codes, zeros = (_awq_columns(layer[name].numpy()) for name in ("qweight", "qzeros"))
    scales = layer["scales"].float().T
    index = torch.arange(codes.shape[1]) // group
    return scales[:, index] * (codes - zeros[:, index]).float()


def compressed_tensors(layer: Mapping[str, Tensor], bits: int, group: int) -> Tensor:
    """Return the weight [N, K] of a pack-quantized layer, in float32."""
    n, k = layer["weight_shape"].tolist()
    codes = torch.tensor(stream(layer["weight_packed"].numpy(), bits, k))
    scales = layer["weight_scale"].float()
    zeros = torch.full(scales.shape, 1 << bits - 1)
    if "weight_zero_point" in layer:
        zeros = torch.tensor(stream(layer["weight_zero_point"].numpy().T, bits, n)).T
    index = layer.get("weight_g_idx", torch.arange(k) // group).long()
    return scales[:, index] * (codes - zeros[:, index]).float()


def _awq_columns(words: np.ndarray) -> Tensor:
    """Return codes [N, rows] of int32 [rows, N / 8]."""
    rows, packed = words.shape
    out = np.empty((packed * 8, rows), dtype=np.int64)
    for place, column in enumerate(AWQ_COLUMNS):
        out[column::8] = ((words >> 4 * place) & 15).T
    return torch.tensor(out)
