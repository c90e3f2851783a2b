"""TokenStore: the keys, or the values, of one layer, held as codes and read as numbers.

>>> import torch
>>> store = TokenStore(KVCodec("int8"))
>>> store.append(torch.tensor([[[[127.0, -3.0]]]]))
>>> store.append(torch.tensor([[[[0.0, 254.0]]]]))
>>> store.read().squeeze().tolist()
[[127.0, -3.0], [0.0, 254.0]]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quantdock.kv_cache.codec import KVCodec
from quantdock.kv_cache.token_buffer import TokenBuffer


class TokenStore:
    """Vectors [B, H, T, D] that grow along T: codes, and a scale for each where it is dynamic."""

    def __init__(self, codec: KVCodec) -> None:
        self.codec = codec
        self.dtype = torch.float32  # that of what was appended last, and of what is read
        self._codes = TokenBuffer()
        self._scales = TokenBuffer()
        self._has_nan = False

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._codes)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of codes and scales, room for further tokens included."""
        return self._codes.num_bytes + self._scales.num_bytes

    def append(self, x: Tensor) -> None:
        """Encode ``x``, float [B, H, t, D], behind the tokens that are there."""
        self.dtype = x.dtype
        codes, scale = self.codec.encode(x)
        if codes.device.type == "cpu":
            self._has_nan = self._has_nan or self.codec.has_nan(codes)
        self._codes.append(codes)
        if scale is not None:
            self._scales.append(scale)

    def read(self, last: int | None = None) -> Tensor:
        """Return the real values [B, H, T, D] of all tokens, or of the ``last`` ones."""
        start = 0 if last is None else max(len(self) - last, 0)
        codes = self._codes.view[:, :, start:]
        scale = self._scales.view[:, :, start:] if self.codec.is_dynamic else None
        return self.codec.decode(codes, scale, self.dtype, self._has_nan)

    def drop_last(self, count: int) -> None:
        """Forget the last ``count`` tokens, or all."""
        self._each(lambda buffer: buffer.drop_last(count))

    def keep_last(self, count: int) -> None:
        """Forget all but the last ``count`` tokens."""
        self._each(lambda buffer: buffer.keep_last(count))

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Select or repeat rows, or move the memory, by ``function`` of [B, H, T, W]."""
        self._each(lambda buffer: buffer.change(function))

    def clear(self) -> None:
        """Forget everything."""
        self._each(TokenBuffer.clear)
        self._has_nan = False

    def _each(self, action: Callable[[TokenBuffer], None]) -> None:
        action(self._codes)
        action(self._scales)
