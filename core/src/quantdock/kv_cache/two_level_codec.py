"""Keys or values in NVFP4: an e4m3 scale for 16 values of a token and head, under a stored one.

The rules are those of NVFP4 (docs/numerics.md), with the second scale as the file gives it.

>>> import torch
>>> codec = TwoLevelCodec(KVScale.of(torch.tensor(0.5)))
>>> x = torch.tensor([1.5, -6.0, 0.5, 3.0] * 4).view(1, 1, 1, 16)
>>> codes, scale = codec.encode(x)
>>> scale.view(torch.float8_e4m3fn).item(), torch.equal(codec.decode(codes, scale, x.dtype), x)
(2.0, True)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec, SecondScale
from quantdock.kv_cache.group_codec import ELEMENT, GroupCodec
from quantdock.kv_cache.scales import KVScale
from quantdock.numerics import dequantize, quantize
from quantdock.schemes.kv_cache_spec import GROUP_SIZE

_SPEC = QuantSpec(
    element=ELEMENT, rows=1, cols=GROUP_SIZE, scale="e4m3", dynamic=True, second=SecondScale(rows=1)
)


class TwoLevelCodec(GroupCodec):
    """Encodes and decodes vectors [D], where D is a multiple of 16, under a static scale."""

    def __init__(self, scale: KVScale) -> None:
        super().__init__()
        self._second = scale.tensor.reshape(-1)  # one, or one a head

    def quantize_rows(self, rows: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes [M, D] and e4m3 scales, as bytes [M, D / 16], of the rows of ``like``."""
        made = quantize(rows, _SPEC, second_scale=self._of_rows(like))
        return made.codes, made.scale.to(torch.float8_e4m3fn).view(torch.uint8)

    def real_rows(self, codes: Tensor, scale: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the real values [M, D] of codes [M, D] and scales [M, D / 16]."""
        first = scale.view(torch.float8_e4m3fn)
        return dequantize(codes, first, _SPEC, second_scale=self._of_rows(like), dtype=dtype)

    def _of_rows(self, like: Tensor) -> Tensor:
        """Return the second scale of each row of ``like`` [B, H, T, ...] as f32 [M, 1].

        Raises:
            FormatError: there is one a head, and ``like`` has another number of heads.
        """
        second = self._second
        batch, heads, tokens = like.shape[:3]
        if second.numel() not in (1, heads):
            raise FormatError(
                f"The KV cache has {heads} heads here, and {second.numel()} scales.",
                why=["one scale belongs to each head"],
                todo="Give each process the scales of its own heads.",
            )
        if second.device != like.device:
            second = self._second = second.to(like.device)
        return second.view(1, -1, 1).expand(batch, heads, tokens).reshape(-1, 1)
