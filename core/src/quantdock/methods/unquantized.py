"""The method of a layer that stays in the model's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quantdock.errors import LoadError
from quantdock.formats import DTYPES
from quantdock.kernels.quantized_input import QuantizedInput, refused
from quantdock.method import QuantizeMethodBase
from quantdock.methods.cut import Cut
from quantdock.methods.pending import attach_loader, require_shard
from quantdock.numerics.dtypes import dtype_name


class UnquantizedLinearMethod(QuantizeMethodBase):
    """A plain weight [N, K]; the shards of a fused layer are row ranges of it."""

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: Sequence[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        cuts: Sequence[Cut] = (),
        **extra_weight_attrs: Any,
    ) -> None:
        """Register ``weight`` [N, K]; unset memory is marked so that it is never computed with.

        Args:
            cuts: which part of each shard this rank holds; empty: all.
        """
        self._sizes = tuple(output_partition_sizes)
        k = input_size_per_partition
        self.cuts = tuple(cuts) or tuple(Cut.whole(n, k) for n in self._sizes)
        self._missing = set(range(len(self._sizes)))
        weight = nn.Parameter(
            torch.empty(sum(self._sizes), k, dtype=params_dtype),
            requires_grad=False,
        )
        attach_loader(weight, self._load)
        layer.register_parameter("weight", weight)

    def _load(self, parameter: Tensor, loaded: Tensor, shard: int = 0) -> None:
        require_shard("weight", shard, len(self.cuts))
        start, cut = sum(self._sizes[:shard]), self.cuts[shard]
        dtype = dtype_name(loaded.dtype)
        if tuple(loaded.shape) != (cut.n, cut.k) or not DTYPES[dtype].floating:
            raise LoadError(
                f"weight (shard {shard}) is {dtype} {list(loaded.shape)} in the checkpoint.",
                why=[f"the layer is not quantized and built for {[cut.n, cut.k]}"],
                todo="Load the checkpoint that belongs to this model's config.",
            )
        parameter.data[start : start + self._sizes[shard]].copy_(loaded[cut.region])
        self._missing.discard(shard)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Check that every shard arrived.

        Raises:
            LoadError: a shard of the weight was never loaded.
        """
        is_declared = hasattr(layer.weight, "weight_loader")  # else it was replaced by a loaded one
        if self._missing and is_declared:
            raise LoadError(
                f"{getattr(layer, 'prefix', '') or 'a layer'}: weight was not loaded.",
                why=[f"no tensor arrived for shard {shard}" for shard in sorted(self._missing)],
                todo="Check that the checkpoint holds this layer.",
            )

    def apply(
        self, layer: nn.Module, x: Tensor | QuantizedInput, bias: Tensor | None = None
    ) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        weight = layer.weight
        assert isinstance(weight, Tensor), "create_weights registers it"
        if isinstance(x, QuantizedInput):
            raise refused(f"An unquantized layer {list(weight.shape)}", x, "x itself")
        return F.linear(x, weight, bias)

    def __str__(self) -> str:
        return "unquantized"
