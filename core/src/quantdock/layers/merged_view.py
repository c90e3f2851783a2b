"""MergedView: one of the layers that share a store, as models and adapters see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quantdock.layers.base_format import BaseFormat
from quantdock.layers.merged_store import MergedStore

if TYPE_CHECKING:
    from quantdock.kernels.quantized_input import InputFormat, QuantizedInput
    from quantdock.methods.quantized import QuantizedLinearMethod
    from quantdock.numerics import CanonicalWeight
    from quantdock.schemes import LayerFacts


class MergedView(nn.Linear):
    """One layer of a store: a module of its own that holds no tensor.

    Its parent holds the store, so that moving, saving and counting see each tensor once.
    """

    store: MergedStore

    def __init__(self, store: MergedStore, index: int, facts: LayerFacts) -> None:
        nn.Module.__init__(self)
        self.__dict__["store"] = store  # no submodule
        self.index = index
        self.facts, self.prefix = facts, facts.prefix
        self.in_features = store.in_features
        self.out_features = len(store.rows[index])

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return [..., n] for ``input`` [..., K]."""
        return self.store.shard(input, self.index)

    @property
    def input_format(self) -> InputFormat | None:
        """Return how the input may be quantized beforehand; the store's."""
        return self.store.input_format

    @property
    def quant_method(self) -> QuantizedLinearMethod:
        """Return the method of the store."""
        return self.store.quant_method

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Return the layer's rows of the kernel's weight, or all of a layout without rows."""
        whole: Tensor = self.store.weight
        return self._part(whole) if whole.shape[:1] == (self.store.out_features,) else whole

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """Return the layer's part of the store's bias."""
        return None if self.store.bias is None else self._part(self.store.bias)

    @property
    def base_format(self) -> BaseFormat:
        """Return what an adapter's runner must know."""
        selection, store = self.quant_method.selection, self.store
        return BaseFormat(
            in_features=self.in_features,
            out_features=self.out_features,
            scheme=selection.scheme,
            kernel=selection.kernel.name,
            dtype=store.params_dtype,
            device=next(store.parameters()).device,
        )

    @property
    def where(self) -> str:
        """Return which part of the store the layer is, without the names of what is around it."""
        rows, store = self.store.rows[self.index], self.store
        name = store.facts.prefix.rpartition(".")[2]
        return f"rows {rows.start}-{rows.stop - 1} of {store.out_features}, in {name}"

    @property
    def num_bytes(self) -> int:
        """Return the layer's share of the store's bytes."""
        rows, store = self.store.rows[self.index], self.store
        size = sum(p.numel() * p.element_size() for p in store.parameters())
        return rows.stop * size // store.out_features - rows.start * size // store.out_features

    def restore(self) -> CanonicalWeight:
        """Return the layer's weight as its file has it; see MergedStore."""
        return self.store.restore(self.index)

    def _part(self, tensor: Tensor) -> Tensor:
        rows = self.store.rows[self.index]
        return tensor[rows.start : rows.stop]

    def reset_parameters(self) -> None:
        """Do nothing: weights come from a checkpoint."""

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, ({self.where})"
