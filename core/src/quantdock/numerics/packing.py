"""Codes in 32-bit words: one stream of bits from the lowest up, or each word filled on its own.

GPTQ, AWQ and compressed-tensors differ in which axis is packed and in which order; the bits within
a word are the same. 3, 5, 6 and 7 bits do not divide a word: dense packing lets codes straddle
words (GPTQ's 3 bits, compressed-tensors since 0.20), loose packing starts each word afresh.

>>> import torch
>>> words = pack_bits(torch.arange(8, dtype=torch.uint8).repeat(4), bits=3)
>>> words.shape, unpack_bits(words, bits=3, count=32).tolist()[:10]
(torch.Size([3]), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1])
"""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import WORD_BITS, num_words


def unpack_bits(words: Tensor, *, bits: int, count: int, dense: bool = True) -> Tensor:
    """Return the codes that ``words`` hold along their last dimension, the lowest bits first.

    Shapes:
        words: int32 [..., num_words(count, bits)]. Returns uint8 [..., count].
    Raises:
        FormatError: the number of words is another.
    """
    _require_bits(bits)
    expected = num_words(count, bits, dense=dense)
    if words.shape[-1] != expected or words.dtype != torch.int32:
        raise FormatError(
            f"{count} codes of {bits} bits cannot lie in {words.dtype} {list(words.shape)}.",
            why=[f"they take {expected} words of int32 along the last dimension"],
            todo="Check the number of bits that the checkpoint states.",
        )
    width, codes = _period(bits, dense=dense)
    num_periods = -(-expected // width)
    padded = torch.nn.functional.pad(words, (0, num_periods * width - expected))
    rows = padded.view(*words.shape[:-1], num_periods, width)
    out = words.new_empty((*words.shape[:-1], num_periods, codes), dtype=torch.uint8)
    mask = (1 << bits) - 1
    for index in range(codes):
        word, low = divmod(index * bits, WORD_BITS)
        value = rows[..., word] >> low
        if low + bits > WORD_BITS:
            value = value & ((1 << WORD_BITS - low) - 1)  # the shift copied the sign
            value = value | (rows[..., word + 1] << WORD_BITS - low)
        out[..., index] = value & mask
    return out.view(*words.shape[:-1], num_periods * codes)[..., :count].contiguous()


def pack_bits(codes: Tensor, *, bits: int, dense: bool = True) -> Tensor:
    """Return ``codes`` in words along their last dimension: the inverse of ``unpack_bits``.

    Shapes:
        codes: uint8 [..., count], each below 2^bits. Returns int32 [..., num_words(count, bits)].
    """
    _require_bits(bits)
    count = codes.shape[-1]
    width, per_period = _period(bits, dense=dense)
    num_periods = -(-count // per_period)
    padded = torch.nn.functional.pad(codes, (0, num_periods * per_period - count))
    rows = padded.view(*codes.shape[:-1], num_periods, per_period)
    out = codes.new_zeros((*codes.shape[:-1], num_periods, width), dtype=torch.int32)
    for index in range(per_period):
        word, low = divmod(index * bits, WORD_BITS)
        value = rows[..., index].to(torch.int32)
        out[..., word] |= value << low
        if low + bits > WORD_BITS:
            out[..., word + 1] |= value >> WORD_BITS - low
    words = num_words(count, bits, dense=dense)
    return out.view(*codes.shape[:-1], num_periods * width)[..., :words].contiguous()


def _period(bits: int, *, dense: bool) -> tuple[int, int]:
    """Return after how many words, and codes, packing begins anew at a word's lowest bit."""
    if not dense:
        return 1, WORD_BITS // bits
    words = bits // gcd(bits, WORD_BITS)
    return words, words * WORD_BITS // bits


def _require_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise FormatError(
            f"Codes of {bits} bits cannot be packed.",
            why=["1 to 8 bits are"],
            todo="Check the number of bits that the checkpoint states.",
        )
