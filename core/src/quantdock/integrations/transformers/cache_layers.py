"""Layers of a transformers cache whose keys and values are codes.

Attention gets what the codes stand for, of the new tokens too, so that a prompt gives the same
result in one piece, in several, or token by token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from quantdock.kv_cache import FixedStore, KVCodec, TokenStore


class _Quantized:
    """What layers have in common whose ``_stores`` hold keys and values; before a base layer.

    The base classes reach for the tensors ``keys`` and ``values``; here those are computed.
    """

    _stores: tuple[TokenStore, ...] | tuple[FixedStore, ...] = ()  # two, once there is a token

    @property
    def keys(self) -> Tensor | None:
        """Return what is stored of the keys [B, H, T, D]; None before the first token."""
        return self._stores[0].read() if self._stores else None

    @keys.setter
    def keys(self, value: None) -> None:
        """Accept the None with which the base class begins."""
        assert value is None, "keys are changed through the layer's methods"

    @property
    def values(self) -> Tensor | None:
        """Return what is stored of the values [B, H, T, D]; None before the first token."""
        return self._stores[1].read() if self._stores else None

    @values.setter
    def values(self, value: None) -> None:
        """Accept the None with which the base class begins."""
        assert value is None, "values are changed through the layer's methods"

    @property
    def num_bytes(self) -> int:
        """Return the bytes of codes and scales, room for further tokens included."""
        return sum(store.num_bytes for store in self._stores)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Select or repeat rows, or move the memory, by ``function`` of [B, H, T, W]."""
        for store in self._stores:
            store.change(function)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give row i what row ``beam_idx[i]`` has."""
        self.change(lambda memory: memory.index_select(0, beam_idx.to(memory.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.change(lambda memory: memory.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows ``indices``, numbers or a mask."""
        self.change(lambda memory: memory[indices.to(memory.device)])

    def offload(self) -> None:
        """Move everything to host memory."""
        self.change(lambda memory: memory.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move everything back to the device of the model."""
        self.change(lambda memory: memory.to(self.device, non_blocking=True))  # type: ignore[attr-defined]


class QuantizedLayer(_Quantized, DynamicLayer):  # type: ignore[misc]
    """A layer that grows token by token."""

    _stores: tuple[TokenStore, ...]

    def __init__(self, codecs: tuple[KVCodec, KVCodec]) -> None:
        super().__init__()
        self._codecs = codecs

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty stores for keys and values of these shapes."""
        self.device = key_states.device
        self._stores = (TokenStore(self._codecs[0]), TokenStore(self._codecs[1]))
        for store, states in zip(self._stores, (key_states, value_states), strict=True):
            store.append(states[:, :, :0])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens; return what is stored of all of them.

        Shapes:
            key_states, value_states: [B, H, t, D]. Returns [B, H, T, D].
        """
        keys, values = self._append(key_states, value_states)
        return keys.read(), values.read()

    def _append(self, key_states: Tensor, value_states: Tensor) -> tuple[TokenStore, TokenStore]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._stores
        keys.append(key_states)
        values.append(value_states)
        return keys, values

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return len(self._stores[0]) if self._stores else 0

    def reset(self) -> None:
        """Forget everything."""
        self._stores = ()
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens; a positive number is how many to keep.

        The latter is how older releases of transformers read it.
        """
        count = -tokens_to_remove
        if tokens_to_remove > 0:
            count = max(self.get_seq_length() - tokens_to_remove, 0)
        for store in self._stores:
            store.drop_last(count)


class QuantizedSlidingLayer(QuantizedLayer, DynamicSlidingWindowLayer):  # type: ignore[misc]
    """A layer that attends to a window: it keeps one token less, or all while it records.

    ``cumulative_length`` counts every token that came; the base class makes masks by it.
    """

    def __init__(self, codecs: tuple[KVCodec, KVCodec], sliding_window: int) -> None:
        DynamicSlidingWindowLayer.__init__(self, sliding_window)
        self._codecs = codecs

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens; return those that the new ones may attend to, and them."""
        keys, values = self._append(key_states, value_states)
        count = key_states.shape[2]
        self.cumulative_length += count
        visible = self.sliding_window - 1 + count
        result = keys.read(visible), values.read(visible)
        if not self.record_past:
            self._narrow()
        return result

    def get_seq_length(self) -> int:
        """Return the number of tokens that came, forgotten ones included."""
        return int(self.cumulative_length)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.cumulative_length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; past the window only while recording, which ends the record.

        Raises:
            RuntimeError: tokens before the window would be needed, and are gone.
        """
        is_full = self.cumulative_length >= self.sliding_window
        if is_full and (not self.record_past or tokens_to_remove > 0):
            DynamicSlidingWindowLayer.crop(self, tokens_to_remove)  # raises, and says which
        super().crop(tokens_to_remove)
        if is_full:
            self.cumulative_length += tokens_to_remove
            self._narrow()
        elif self._stores:
            self.cumulative_length = len(self._stores[0])

    def _narrow(self) -> None:
        for store in self._stores:
            store.keep_last(self.sliding_window - 1)


class QuantizedStaticLayer(_Quantized, StaticLayer):  # type: ignore[misc]
    """A layer of fixed length and addresses, for compiled code."""

    _stores: tuple[FixedStore, ...]
    cumulative_length: Tensor  # a number on the device, so that compiled code can count

    def __init__(self, codecs: tuple[KVCodec, KVCodec], max_cache_len: int) -> None:
        super().__init__(max_cache_len)
        self._codecs = codecs

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the memory for keys and values of these shapes."""
        self.device = key_states.device
        self.batch_size, self.num_heads = key_states.shape[:2]
        self.cumulative_length = self.cumulative_length.to(self.device)
        self._stores = (
            FixedStore(self._codecs[0], key_states, self.max_cache_len),
            FixedStore(self._codecs[1], value_states, self.max_cache_len),
        )
        if not torch.compiler.is_compiling():
            memories = (memory for store in self._stores for memory in store.memories())
            for tensor in (*memories, self.cumulative_length):
                torch._dynamo.mark_static_address(tensor)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens behind those that are there; return all positions, filled or not.

        Shapes:
            key_states, value_states: [B, H, t, D]. Returns [B, H, max_cache_len, D].
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[2]
        positions = torch.arange(count, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(count)
        keys, values = self._stores
        keys.write(positions, key_states)
        values.write(positions, value_states)
        return keys.read(), values.read()

    def reset(self) -> None:
        """Forget everything and keep the memory."""
        for store in self._stores:
            store.clear()
        self.cumulative_length.zero_()


class QuantizedStaticSlidingLayer(QuantizedStaticLayer, StaticSlidingWindowLayer):  # type: ignore[misc]
    """A layer of fixed addresses that attends to a window, and holds one."""

    def __init__(self, codecs: tuple[KVCodec, KVCodec], max_cache_len: int, window: int) -> None:
        StaticSlidingWindowLayer.__init__(self, max_cache_len, window)
        self._codecs = codecs

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens; return those that the new ones may attend to, and them.

        As long as the window is not full, that is the window, its empty positions included.
        """
        before, size = self.cumulative_length_int, self.max_cache_len
        self.cumulative_length_int += key_states.shape[2]
        if self.cumulative_length_int <= size:
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        kept = slice(int(before >= size), min(before, size))
        keys, values = self._stores
        return keys.slide(kept, key_states), values.slide(kept, value_states)

    def reset(self) -> None:
        """Forget everything and keep the memory."""
        super().reset()
        self.cumulative_length_int = 0
