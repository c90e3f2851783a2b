"""MergedStore: one set of kernel tensors for layers that are called one by one with one input.

Queries, keys and values are such layers, and gate and up. Each stays a module of its own, whose
output features are a range of the store's rows. The first of them to be called with some x computes
the rows of all; the others, called with that same x, find theirs done. Where writes to x are not
counted (``torch.inference_mode``) or calls are recorded (``torch.compile``), nothing is kept, and
each computes its own rows if the kernel can tell them apart (``rows``), else all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from quantdock.layers.fixed_format import FixedFormat
from quantdock.methods.cut import Cut
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.numerics.cut import cut_rows

if TYPE_CHECKING:
    from quantdock.method import MethodSource
    from quantdock.numerics import CanonicalWeight
    from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True)
class _Kept:
    """The result for one x, while some layers have not asked for theirs.

    ``versions`` count the writes to x and to the store's tensors: others, and it is of no use.
    """

    x: ref[Tensor]
    versions: tuple[int, ...]
    result: Tensor
    waiting: frozenset[int]


class MergedStore(FixedFormat):
    """The weights of several quantized linear layers [n, K] of one input, under one another.

    No ``nn.Linear``, so that code which looks for layers finds those that are called.

    Args:
        in_features: K. sizes: n of each layer. bias: whether all of them have one.
        params_dtype: of activations and bias.
        quant_config: decides and decodes, for a layer of ``facts``, which name the shards.
    """

    bias: nn.Parameter | None
    weight: Tensor  # of most kernels, in their layout

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

    def forward(self, input: Tensor) -> Tensor:
        """Return the features [..., N] of all layers for ``input`` [..., K]."""
        return self.quant_method.apply(self, input, self.bias)

    def shard(self, input: Tensor, index: int) -> Tensor:
        """Return the features [..., n] of one layer for ``input`` [..., K]."""
        versions = self._versions(input)
        part = slice(self.rows[index].start, self.rows[index].stop)
        if versions is not None:
            shared: Tensor = self._shared(input, index, versions)[..., part]
            return shared.contiguous()
        kernel = self.quant_method.kernel
        if not hasattr(kernel, "rows"):
            own: Tensor = self(input)[..., part]
            return own.contiguous()
        bias = None if self.bias is None else self.bias[part]
        tensors = {name: self._parameters[name] for name in self.quant_method.names}
        result: Tensor = kernel.apply(kernel.rows(tensors, part), input, bias)
        return result

    def _shared(self, input: Tensor, index: int, versions: tuple[int, ...]) -> Tensor:
        """Return the features of all layers; each layer asks once for what is computed once."""
        kept = self._kept
        is_known = kept is not None and kept.x() is input and kept.versions == versions
        if kept is None or not is_known or index not in kept.waiting:
            every = frozenset(range(len(self.rows)))
            kept = _Kept(ref(input, self._forget), versions, self(input), every)
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

    def _versions(self, input: Tensor) -> tuple[int, ...] | None:
        """Return what grows when x or a tensor of the store is written to.

        None where nothing counts that (under inference mode), or calls are recorded to be compiled.
        """
        tensors = (input, *(tensor for tensor in self._parameters.values() if tensor is not None))
        if torch.compiler.is_compiling() or any(tensor.is_inference() for tensor in tensors):
            return None
        return tuple(tensor._version for tensor in tensors)

    def _forget(self, dead: Any = None) -> None:
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def extra_repr(self) -> str:
        """Describe the store in ``print(model)``."""
        sizes = ", ".join(str(len(rows)) for rows in self.rows)
        return f"in_features={self.in_features}, out_features=({sizes}), {self.quant_method}"
