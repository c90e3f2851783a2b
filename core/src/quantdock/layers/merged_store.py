"""MergedStore: one set of kernel tensors for layers that are called one by one with one input.

Queries, keys and values are such layers, and gate and up. Each stays a module of its own, whose
output features are a range of the store's rows. The first of them to be called with some x computes
the rows of all; the others, called with that same x, find theirs done. Where calls are recorded
(``torch.compile``) nothing is kept, and each computes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from quantdock.kernels.quantized_input import QuantizedInput
from quantdock.layers.fixed_format import FixedFormat
from quantdock.layers.main_tensor import MainTensor
from quantdock.methods.cut import Cut
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.numerics.cut import cut_rows

if TYPE_CHECKING:
    from quantdock.kernels.quantized_input import InputFormat
    from quantdock.method import MethodSource
    from quantdock.numerics import CanonicalWeight
    from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True)
class _Kept:
    """The result for one x, while some layers have not asked for theirs.

    ``versions`` count the writes to x and to the store's tensors, and say whether gradients are
    recorded. Tensors of inference mode do not count, so of such an x there is a copy.
    """

    x: ref[Tensor]
    copy: Tensor | None
    versions: tuple[int, ...]
    result: Tensor
    waiting: frozenset[int]

    def is_for(self, x: Tensor, versions: tuple[int, ...]) -> bool:
        """Return whether ``x`` is that tensor, and nothing was written to since."""
        is_same = self.x() is x and self.versions == versions
        return is_same and (self.copy is None or torch.equal(self.copy, x))


class MergedStore(MainTensor, FixedFormat):
    """The weights of several quantized linear layers [n, K] of one input, under one another.

    No ``nn.Linear``, so that code which looks for layers finds those that are called.

    Args:
        in_features: K. sizes: n of each layer. bias: whether all of them have one.
        params_dtype: of activations and bias.
        quant_config: decides and decodes, for a layer of ``facts``, which name the shards.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        bias: bool,
        *,
        params_dtype: torch.dtype,
        quant_config: MethodSource,
        facts: LayerFacts,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, sum(sizes)
        self.facts, self.params_dtype = facts, params_dtype
        self.cuts = tuple(Cut.whole(n, in_features) for n in sizes)
        tops = accumulate(sizes, initial=0)
        self.rows = tuple(range(top, top + n) for top, n in zip(tops, sizes, strict=False))
        empty = torch.empty(self.out_features, dtype=params_dtype)
        self.register_parameter("bias", nn.Parameter(empty, requires_grad=False) if bias else None)
        method = quant_config.get_quant_method(self, facts.prefix)
        assert isinstance(method, QuantizedLinearMethod), "plain layers are not merged"
        self.quant_method: QuantizedLinearMethod = method
        method.create_weights(
            self, in_features, sizes, in_features, self.out_features, params_dtype, cuts=self.cuts
        )
        self._kept: _Kept | None = None

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return the features [..., N] of all layers for ``input`` [..., K]."""
        return self.quant_method.apply(self, input, self.bias)

    @property
    def input_format(self) -> InputFormat | None:
        """Return how the input may be quantized beforehand; None: it may not be."""
        return self.quant_method.input_format(self)

    def shard(self, input: Tensor | QuantizedInput, index: int) -> Tensor:
        """Return the features [..., n] of one layer for ``input`` [..., K]."""
        rows = self.rows[index]
        keeps = not torch.compiler.is_compiling()
        whole = self._shared(input, index) if keeps else self(input)
        return whole[..., rows.start : rows.stop].contiguous()

    def _shared(self, input: Tensor | QuantizedInput, index: int) -> Tensor:
        """Return the features of all layers; each layer asks once for what is computed once."""
        x = input.codes if isinstance(input, QuantizedInput) else input
        kept, versions = self._kept, self._versions(x)
        if kept is None or index not in kept.waiting or not kept.is_for(x, versions):
            every = frozenset(range(len(self.rows)))
            copy = x.clone() if x.is_inference() else None
            kept = _Kept(ref(x, self.forget), copy, versions, self(input), every)
        left = kept.waiting - {index}
        self._kept = replace(kept, waiting=left) if left else None
        return kept.result

    def restore(self, index: int) -> CanonicalWeight:
        """Return the weight of one layer, as its file has it.

        Raises:
            SaveError: values were changed on the way to the kernel.
        """
        rows = self.rows[index]
        return cut_rows(self.quant_method.restore(self), rows.start, rows.stop)

    def _versions(self, input: Tensor) -> tuple[int, ...]:
        """Return what changes when x or a tensor of the store is written to, or with gradients.

        Tensors of inference mode do not count writes.
        """
        own = (tensor for tensor in self._parameters.values() if tensor is not None)
        counts = [tensor._version for tensor in (input, *own) if not tensor.is_inference()]
        return int(torch.is_grad_enabled()), *counts

    def forget(self, dead: Any = None) -> None:
        """Keep no result: its input is gone, or the weights are new."""
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def extra_repr(self) -> str:
        """Describe the store in ``print(model)``."""
        sizes = ", ".join(str(len(rows)) for rows in self.rows)
        return f"in_features={self.in_features}, out_features=({sizes}), {self.quant_method}"
