"""Weights of experts as gpt-oss stores them: ``_blocks`` and ``_scales``, MXFP4 in groups of 32.

A group is a row of 16 bytes in a dimension of its own. Rows are output features, as everywhere
here; transformers' own parameters are their transpose.

>>> import torch
>>> blocks = torch.full((1, 2, 3, 16), 0x42, dtype=torch.uint8)
>>> scales = torch.full((1, 2, 3), 128, dtype=torch.uint8)
>>> codes, scale = unpack_expert_blocks(blocks, scales)
>>> codes.shape, codes[0, 0, :4].tolist(), scale.shape, scale[0, 0, 0].item()
(torch.Size([1, 2, 96]), [2, 4, 2, 4], torch.Size([1, 2, 3]), 2.0)
"""

from __future__ import annotations

from torch import Tensor

from quantdock.errors import FormatError
from quantdock.numerics.byte_packing import pack_bytes, unpack_bytes
from quantdock.numerics.scales import decode_scale, encode_scale

GROUP_BYTES = 16  # 32 codes of 4 bits


def unpack_expert_blocks(blocks: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return (fp4_e2m1 codes, scale) of the experts' weights [N, K].

    Shapes:
        blocks: uint8 [..., N, K / 32, 16]. scales: exponent bytes [..., N, K / 32].
        Returns uint8 [..., N, K] and f32 [..., N, K / 32].
    Raises:
        FormatError: the shapes are others.
    """
    if blocks.shape[-1:] != (GROUP_BYTES,) or scales.shape != blocks.shape[:-1]:
        raise FormatError(
            f"Blocks {list(blocks.shape)} and scales {list(scales.shape)} do not fit together.",
            why=[f"blocks are [experts, rows, groups, {GROUP_BYTES}], with one scale a group"],
            todo="Load both tensors of the same layer, as they are stored.",
        )
    return unpack_bytes(blocks, bits=4).flatten(-2), decode_scale(scales)


def pack_expert_blocks(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return (blocks, scales) as stored: the inverse of ``unpack_expert_blocks``.

    Raises:
        FormatError: K is no multiple of 32, or a scale is no power of two.
    """
    groups = scale.shape[-1]
    if codes.shape != (*scale.shape[:-1], groups * GROUP_BYTES * 2):
        raise FormatError(
            f"Codes {list(codes.shape)} and scales {list(scale.shape)} cannot be stored as blocks.",
            why=[f"every {GROUP_BYTES * 2} columns have one scale"],
            todo="Quantize to fp4_e2m1[1x32]:e8m0, with K a multiple of 32.",
        )
    blocks = pack_bytes(codes, bits=4).view(*scale.shape[:-1], groups, GROUP_BYTES)
    return blocks, encode_scale(scale, "uint8")
