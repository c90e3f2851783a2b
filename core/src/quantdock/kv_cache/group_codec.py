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
        codes, scale = self.quantize_rows(rows, x)
        return pack_bytes(codes, bits=4).view(*x.shape[:-1], -1), scale.view(*x.shape[:-1], -1)

    def quantize_rows(self, rows: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes [M, D] and exponents [M, D / 16] of the vectors of ``like``, as rows."""
        made = quantize(rows, _SPEC)
        return made.codes, encode_scale(made.scale, "uint8")

    def real_rows(self, codes: Tensor, scale: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the real values [M, D] of codes [M, D] and exponents [M, D / 16]."""
        return dequantize(codes, decode_scale(scale), _SPEC, dtype=dtype)

    def decode(
        self, codes: Tensor, scale: Tensor | None, dtype: torch.dtype, has_nan: bool | None = None
    ) -> Tensor:
        """Return the real values [B, H, T, D]; a NaN that was stored made its group's scale NaN."""
        assert scale is not None, "a dynamic scale is given with its codes"
        shape = (*codes.shape[:-1], 2 * codes.shape[-1])
        if codes.numel() == 0:
            return codes.new_empty(shape, dtype=dtype)
        rows = unpack_bytes(codes.reshape(-1, codes.shape[-1]), bits=4)
        return self.real_rows(rows, scale.reshape(-1, scale.shape[-1]), codes, dtype).view(shape)
