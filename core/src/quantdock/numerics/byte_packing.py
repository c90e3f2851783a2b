"""Codes of 4 and 6 bits in bytes: two in one byte, four in three, the lowest bits first.

That is the order of every MXFP4, MXFP6 and NVFP4 file known; ``high_first`` is the other order of
two nibbles. Codes in 32-bit words are in packing.py.

>>> import torch
>>> packed = pack_bytes(torch.tensor([1, 2, 3, 4], dtype=torch.uint8), bits=4)
>>> packed.tolist(), unpack_bytes(packed, bits=4).tolist()
([33, 67], [1, 2, 3, 4])
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError

# How many codes begin and end with the borders of how many bytes.
_PERIODS = {4: (2, 1), 6: (4, 3)}


def unpack_bytes(packed: Tensor, *, bits: int, high_first: bool = False) -> Tensor:
    """Return the codes in ``packed`` along its last dimension.

    Shapes:
        packed: uint8, int8 or float4_e2m1fn_x2 [..., B]. Returns uint8 [..., B * 8 / bits].
    Raises:
        FormatError: the bytes do not end with a code, or cannot be packed so.
    """
    codes, size = _period(bits, high_first)
    _require(packed, size, f"bytes cannot hold codes of {bits} bits")
    stored = _in_periods(packed, size)
    out = torch.empty((*stored.shape[:-1], codes), dtype=torch.uint8, device=packed.device)
    for index in range(codes):
        low = bits * (codes - 1 - index if high_first else index)
        byte, shift = divmod(low, 8)
        value = stored[..., byte] >> shift
        if shift + bits > 8:
            value = value | (stored[..., byte + 1] << 8 - shift)
        out[..., index] = value & (1 << bits) - 1
    return out.view(*packed.shape[:-1], packed.shape[-1] // size * codes)


def pack_bytes(codes: Tensor, *, bits: int, high_first: bool = False) -> Tensor:
    """Return uint8 ``codes``, each below 2^bits, packed: the inverse of ``unpack_bytes``.

    Shapes:
        codes: uint8 or int8 (of which the low bits are taken) [..., K]. Returns uint8
        [..., K * bits / 8].
    Raises:
        FormatError: K is no multiple of the codes that fill whole bytes.
    """
    number, size = _period(bits, high_first)
    _require(codes, number, f"codes of {bits} bits do not fill whole bytes")
    parts = _in_periods(codes, number)
    out = parts.new_zeros((*parts.shape[:-1], size))
    for index in range(number):
        low = bits * (number - 1 - index if high_first else index)
        byte, shift = divmod(low, 8)
        value = parts[..., index] & (1 << bits) - 1
        out[..., byte] |= value << shift
        if shift + bits > 8:
            out[..., byte + 1] |= value >> 8 - shift
    return out.view(*codes.shape[:-1], codes.shape[-1] // number * size)


def sign_extend(codes: Tensor, *, bits: int) -> Tensor:
    """Return two's complement ``codes`` of ``bits`` bits, one per uint8, as the int8 they mean.

    >>> sign_extend(torch.tensor([7, 8, 15], dtype=torch.uint8), bits=4).tolist()
    [7, -8, -1]
    """
    return (codes << 8 - bits).view(torch.int8) >> 8 - bits


def _period(bits: int, high_first: bool) -> tuple[int, int]:
    if bits not in _PERIODS or (high_first and bits != 4):
        raise FormatError(
            f"Codes of {bits} bits cannot be packed in bytes{' high first' * high_first}.",
            why=["4 bits can in either order, 6 bits with the lowest first"],
            todo="Check the number of bits that the checkpoint states.",
        )
    return _PERIODS[bits]


def _in_periods(tensor: Tensor, length: int) -> Tensor:
    """Return the bytes of ``tensor``, its last dimension in parts of ``length``."""
    shape = (*tensor.shape[:-1], tensor.shape[-1] // length, length)
    return tensor.view(torch.uint8).reshape(shape)


def _require(tensor: Tensor, multiple: int, problem: str) -> None:
    if tensor.dim() == 0 or tensor.shape[-1] % multiple:
        raise FormatError(
            f"{list(tensor.shape)} {problem}.",
            why=[f"the last dimension must be a multiple of {multiple}"],
            todo="Check which dimension of the checkpoint's tensor is packed.",
        )
