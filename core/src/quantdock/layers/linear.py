"""Linear layers whose weight, storage and arithmetic belong to a method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from quantdock.errors import LoadError
from quantdock.layers.base_format import BaseFormat
from quantdock.layers.fixed_format import FixedFormat
from quantdock.layers.main_tensor import MainTensor
from quantdock.method import require_config
from quantdock.methods.cut import Cut, Part
from quantdock.methods.pending import attach_loader, require_shard
from quantdock.methods.unquantized import UnquantizedLinearMethod
from quantdock.schemes import Kind, LayerFacts

if TYPE_CHECKING:
    from quantdock.kernels.quantized_input import InputFormat, QuantizedInput
    from quantdock.method import MethodSource, QuantizeMethodBase


class LinearBase(MainTensor, FixedFormat, nn.Linear):  # type: ignore[misc]  # weight
    """``y = x @ weight.T + bias``, carried out by ``quant_method``.

    A subclass of ``nn.Linear`` so that code which looks for one (adapters, head resizing) finds
    it; ``in_features`` and ``out_features`` are the real sizes whatever the weight's layout is.

    Args:
        input_size: K. output_size: N, or the sizes of the fused shards in order.
        params_dtype: of unquantized parameters and of activations; None: torch's default.
        quant_config: None means unquantized.
        facts: what is known about the layer; None: its prefix and ``kind`` alone.
        cuts: which part of each fused shard this rank holds; empty: all.
    """

    kind: ClassVar[Kind] = "linear"

    def __init__(
        self,
        input_size: int,
        output_size: int | Sequence[int],
        bias: bool = True,
        *,
        params_dtype: torch.dtype | None = None,
        quant_config: MethodSource | None = None,
        prefix: str = "",
        facts: LayerFacts | None = None,
        cuts: Sequence[Cut] = (),
    ) -> None:
        nn.Module.__init__(self)
        sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
        dtype = params_dtype or torch.get_default_dtype()
        self.cuts = tuple(cuts) or tuple(Cut.whole(n, input_size) for n in sizes)
        own_sizes = [len(cut.rows) for cut in self.cuts]
        self.in_features = len(self.cuts[0].columns)
        self.out_features = sum(own_sizes)
        self.prefix = prefix
        self.params_dtype = dtype
        self.facts = facts or LayerFacts(prefix=prefix, kind=self.kind)
        self.register_parameter("bias", self._empty_bias(dtype) if bias else None)
        require_config(quant_config)
        self.quant_method: QuantizeMethodBase = (
            UnquantizedLinearMethod()
            if quant_config is None
            else quant_config.get_quant_method(self, prefix)
        )
        self.quant_method.create_weights(
            self, self.in_features, own_sizes, input_size, sum(sizes), dtype, cuts=self.cuts
        )

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return [..., N] for ``input`` [..., K], as it is or quantized for ``input_format``."""
        return self.quant_method.apply(self, input, self.bias)

    @property
    def input_format(self) -> InputFormat | None:
        """Return how the input may be quantized beforehand; None: it may not be."""
        return self.quant_method.input_format(self)

    def part(self, name: str) -> Part | None:
        """Return which part of the file's tensor the parameter ``name`` holds; None: all of it.

        For the bias, and the weight of an unquantized layer, of layers of one shard.
        """
        (cut,) = self.cuts
        return None if cut.is_whole else cut.part(1 if name == "bias" else 2)

    def _empty_bias(self, dtype: torch.dtype) -> nn.Parameter:
        bias = nn.Parameter(torch.empty(self.out_features, dtype=dtype), requires_grad=False)
        attach_loader(bias, partial(_load_bias, self.cuts))
        return bias

    @property
    def base_format(self) -> BaseFormat:
        """Return what an adapter's runner must know; the dense weight is not among it."""
        selection = getattr(self.quant_method, "selection", None)
        return BaseFormat(
            in_features=self.in_features,
            out_features=self.out_features,
            scheme=selection.scheme if selection else None,
            kernel=selection.kernel.name if selection else None,
            dtype=self.params_dtype,
            device=next(self.parameters()).device,
        )

    def reset_parameters(self) -> None:
        """Do nothing: weights come from a checkpoint."""

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self.quant_method}"
        )


class ReplicatedLinear(LinearBase):
    """A linear layer that every rank holds whole."""


def _load_bias(cuts: Sequence[Cut], parameter: Tensor, loaded: Tensor, shard: int = 0) -> None:
    """Copy what a rank keeps of ``loaded`` [n], the whole bias of one shard."""
    require_shard("bias", shard, len(cuts))
    cut = cuts[shard]
    if tuple(loaded.shape) != (cut.n,):
        raise LoadError(
            f"bias (shard {shard}) has shape {list(loaded.shape)} in the checkpoint.",
            why=[f"the layer is built for {[cut.n]}"],
            todo="Load the checkpoint that belongs to this model's config.",
        )
    start = sum(len(other.rows) for other in cuts[:shard])
    parameter.data[start : start + len(cut.rows)].copy_(loaded[cut.region[0]])
