"""TokenBuffer: a tensor that grows along its tokens without being copied for each of them.

>>> import torch
>>> buffer = TokenBuffer()
>>> for token in range(3):
...     buffer.append(torch.full((1, 1, 1, 2), token, dtype=torch.int8))
>>> buffer.drop_last(1)
>>> buffer.view.squeeze().tolist()
[[0, 0], [1, 1]]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Room for further tokens, made whenever the room is used up: at least this many, and this share of
# what is there. So n tokens are copied 16 times each at most, and 6 % of the memory is spare.
LEAST_ROOM = 64
ROOM_SHARE = 16


class TokenBuffer:
    """Tensors [B, H, T, W] of one byte or more an entry, appended along T.

    Memory is kept as bytes where entries are bytes, since torch copies no float8 by index.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None  # [B, H, capacity, W]
        self._start = self._end = 0  # the tokens that count
        self._dtype = torch.uint8

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self._end - self._start

    @property
    def view(self) -> Tensor:
        """Return the tokens [B, H, T, W], valid until the next change."""
        return self._bytes.view(self._dtype)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of memory that are held, room for further tokens included."""
        return 0 if self._memory is None else self._memory.nbytes

    def append(self, new: Tensor) -> None:
        """Copy ``new`` [B, H, t, W] behind the tokens that are there."""
        self._dtype = new.dtype
        new = new.view(torch.uint8) if new.element_size() == 1 else new
        count = new.shape[2]
        if self._memory is None or self._end + count > self._memory.shape[2]:
            self._grow(new)
        assert self._memory is not None, "_grow makes it"
        self._memory[:, :, self._end : self._end + count] = new
        self._end += count

    def drop_last(self, count: int) -> None:
        """Forget the last ``count`` tokens, or all."""
        self._end = max(self._end - count, self._start)

    def keep_last(self, count: int) -> None:
        """Forget all but the last ``count`` tokens."""
        self._start = max(self._start, self._end - count)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace the tokens by what ``function`` makes of them: rows selected, or moved."""
        if self._memory is None:
            return
        with torch.inference_mode(False):
            self._memory = function(self._bytes)
        self._start, self._end = 0, self._memory.shape[2]

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self._memory = None
        self._start = self._end = 0

    @property
    def _bytes(self) -> Tensor:
        assert self._memory is not None, "nothing was appended yet"
        return self._memory[:, :, self._start : self._end]

    def _grow(self, new: Tensor) -> None:
        """Move the tokens to memory that has room for ``new`` and more."""
        length = len(self)
        total = length + new.shape[2]
        batch, heads, _, width = new.shape
        room = max(LEAST_ROOM, total // ROOM_SHARE)
        with torch.inference_mode(False):  # it may be written to outside of this call's mode
            memory = new.new_empty(batch, heads, total + room, width)
        if length:
            memory[:, :, :length] = self._bytes
        self._memory, self._start, self._end = memory, 0, length
