"""FixedStore: the keys, or the values, of one layer at an address that never changes.

For captured graphs and compiled code, which write at positions that are tensors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quantdock.kv_cache.codec import KVCodec


class FixedStore:
    """Vectors [B, H, capacity, D]; tokens that were not written yet read as zeros."""

    def __init__(self, codec: KVCodec, like: Tensor, capacity: int) -> None:
        """Make the memory for ``capacity`` tokens of the batch, heads and width of ``like``."""
        self.codec = codec
        self.dtype = like.dtype
        batch, heads, _, width = like.shape
        num_bytes, num_scales, dtype = codec.memory(width)
        with torch.inference_mode(False):  # it may be written to outside of this call's mode
            self._codes = like.new_zeros((batch, heads, capacity, num_bytes), dtype=torch.uint8)
            self._scales = (
                like.new_zeros((batch, heads, capacity, num_scales), dtype=dtype)
                if codec.is_dynamic
                else None
            )

    @property
    def num_bytes(self) -> int:
        """Return the bytes of codes and scales."""
        return sum(memory.nbytes for memory in self.memories())

    def memories(self) -> Iterator[Tensor]:
        """Yield the tensors that hold everything."""
        yield self._codes
        if self._scales is not None:
            yield self._scales

    def write(self, positions: Tensor, x: Tensor) -> None:
        """Encode ``x``, float [B, H, t, D], at ``positions``, int64 [t]."""
        codes, scale = self.codec.encode(x)
        self._codes.index_copy_(2, positions, codes.view(torch.uint8))
        if scale is not None:
            assert self._scales is not None, "made with the codes"
            self._scales.index_copy_(2, positions, scale)

    def read(self) -> Tensor:
        """Return the real values [B, H, capacity, D]."""
        codes = self._codes.view(self.codec.storage)
        # Compiled code cannot look for NaN, so they are taken to be there.
        return self.codec.decode(codes, self._scales, self.dtype, has_nan=True)

    def slide(self, kept: slice, x: Tensor) -> Tensor:
        """Encode ``x`` behind the tokens ``kept``; the last of all stay, as many as there is room.

        Returns what all of them stand for, those that do not stay too: [B, H, kept + t, D].
        """
        codes, scale = self.codec.encode(x)
        joined = torch.cat([self._codes[:, :, kept], codes.view(torch.uint8)], dim=2)
        self._codes.copy_(joined[:, :, -self._codes.shape[2] :])
        scales = None
        if scale is not None:
            assert self._scales is not None, "made with the codes"
            scales = torch.cat([self._scales[:, :, kept], scale], dim=2)
            self._scales.copy_(scales[:, :, -self._scales.shape[2] :])
        codes = joined.view(self.codec.storage)
        return self.codec.decode(codes, scales, self.dtype, has_nan=True)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Select rows by ``function`` of [B, H, T, W]; the batch keeps its size."""
        for memory in self.memories():
            memory.copy_(function(memory))

    def clear(self) -> None:
        """Make every token read as zeros."""
        for memory in self.memories():
            memory.zero_()
