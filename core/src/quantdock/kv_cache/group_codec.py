"""Keys or values in fp4: two codes a byte, and one power of two for 16 values of a token and head.

The rules are those of MXFP4 (docs/numerics.md), with groups of 16 instead of 32, since the width of
a head is small and outliers of keys lie in few channels.

>>> import torch
>>> codec = GroupCodec()
>>> x = torch.tensor([1.5, -6.0, 0.5, 3.0] * 4).view(1, 1, 1, 16)
>>> codes, scale = codec.encode(x)
>>> codes.shape, scale.shape, torch.equal(codec.decode(codes, scale, torch.float32), x)
(torch.Size([1, 1, 1, 8]), torch.Size([1, 1, 1, 1]), True)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.kv_cache.codec import KVCodec
from quantdock.kv_cache.scales import KVScale
from quantdock.numerics import (
    decode_scale,
    dequantize,
    encode_scale,
    pack_bytes,
    quantize,
    unpack_bytes,
)
from quantdock.schemes.kv_cache_spec import GROUP_SIZE

ELEMENT = "fp4_e2m1"
_SPEC = QuantSpec(
    element=ELEMENT, rows=1, cols=GROUP_SIZE, scale="e8m0", rounding="even", dynamic=True
)


class GroupCodec(KVCodec):
    """Encodes and decodes vectors [D], where D is a multiple of 16."""

    def __init__(self) -> None:
        super().__init__(ELEMENT)

    def memory(self, width: int) -> tuple[int, int, torch.dtype]:
        """Return bytes of codes, number of scales and their dtype, of a vector of ``width``.

        Raises:
            FormatError: ``width`` is no multiple of 16.
        """
        if width % GROUP_SIZE:
            raise FormatError(
                f"Keys or values of {width} numbers a head cannot be kept in {ELEMENT}.",
                why=[f"{GROUP_SIZE} numbers share a scale"],
                todo="Choose kv_cache='fp8'.",
            )
        return width // 2, width // GROUP_SIZE, torch.uint8

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return packed codes uint8 [B, H, T, D / 2] and exponents uint8 [B, H, T, D / 16]."""
        self.memory(x.shape[-1])
        rows = x.detach().to(torch.float32).reshape(-1, x.shape[-1])
        if rows.shape[0] == 0:
            empty = x.new_empty(0, dtype=torch.uint8)
            return (
                empty.view(*x.shape[:-1], x.shape[-1] // 2),
                empty.view(*x.shape[:-1], x.shape[-1] // GROUP_SIZE),
            )
        made = quantize(rows, _SPEC)
        codes, scale = pack_bytes(made.codes, bits=4), encode_scale(made.scale, "uint8")
        return codes.view(*x.shape[:-1], -1), scale.view(*x.shape[:-1], -1)

    def decode(
        self, codes: Tensor, scale: Tensor | None, dtype: torch.dtype, has_nan: bool | None = None
    ) -> Tensor:
        """Return the real values [B, H, T, D]; a NaN that was stored made its group's scale NaN."""
        assert scale is not None, "a dynamic scale is given with its codes"
        shape = (*codes.shape[:-1], 2 * codes.shape[-1])
        if codes.numel() == 0:
            return codes.new_empty(shape, dtype=dtype)
        rows = unpack_bytes(codes.reshape(-1, codes.shape[-1]), bits=4)
        factors = decode_scale(scale.reshape(-1, scale.shape[-1]))
        return dequantize(rows, factors, _SPEC, dtype=dtype).view(shape)


def make_codec(element: str, scale: KVScale | None) -> KVCodec:
    """Return what encodes keys or values as ``element``; fp4 computes scales for groups."""
    return GroupCodec() if element == ELEMENT else KVCodec(element, scale)
