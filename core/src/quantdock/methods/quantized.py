"""The method of every quantized linear layer: the config decodes, the kernel executes."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from quantdock.kernel import Problem, Selection
from quantdock.method import QuantizeMethodBase
from quantdock.methods.pending import PendingWeights, attach_loader
from quantdock.methods.slot import Slot
from quantdock.numerics.dtypes import dtype_name, torch_dtype
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight


class Decoder(Protocol):
    """The part of a config that a method needs."""

    forbids_substitution: bool

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors of one shard."""

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight of all shards."""


class QuantizedLinearMethod(QuantizeMethodBase):
    """Runs one scheme; ``selection`` says with which kernel, and ``value_steps`` what it cost."""

    def __init__(
        self, decoder: Decoder, scheme: Scheme, facts: LayerFacts, dispatch: Dispatch
    ) -> None:
        self.decoder = decoder
        self.scheme = scheme
        self.facts = facts
        self.dispatch = dispatch
        self.value_steps: tuple[str, ...] = ()
        self.is_finished = False

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: Sequence[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Choose the kernel and declare the slots, on no device yet.

        Raises:
            NoKernelError: nothing may run the layer.
        """
        k, sizes = input_size_per_partition, tuple(output_partition_sizes)
        problem = Problem(
            scheme=self.scheme,
            n=sum(sizes),
            k=k,
            shards=sizes,
            dtype=dtype_name(params_dtype),
            has_bias=getattr(layer, "bias", None) is not None,
        )
        self.selection: Selection = self.dispatch.select(
            problem, exact=self.decoder.forbids_substitution
        )
        executed = Problem(
            scheme=self.selection.scheme,
            n=problem.n,
            k=k,
            shards=sizes,
            dtype=problem.dtype,
            has_bias=problem.has_bias,
        )
        self.kernel = resolve_name(self.selection.kernel.target)(executed)
        slots = [self.decoder.slots(self.scheme, n, k, self.facts) for n in sizes]
        self.pending = PendingWeights(self.facts.prefix, slots)
        for slot in slots[0]:
            layer.register_parameter(slot.name, self._declared(slot, sizes, k))

    def _declared(self, slot: Slot, sizes: tuple[int, ...], k: int) -> nn.Parameter:
        """Return a parameter without memory that stands for one slot of all shards."""
        shards = [self.decoder.slots(self.scheme, n, k, self.facts) for n in sizes]
        shapes = [next(s.shape for s in shard if s.name == slot.name) for shard in shards]
        first, *others = shapes
        shape: tuple[int, ...] = first
        if others:
            grows = bool(first) and slot.row_tile is not None
            rows = sum(s[0] for s in shapes) if grows else len(shapes)
            shape = (rows, *first[1:]) if grows else (rows, *first)
        data = torch.empty(shape, dtype=torch_dtype(slot.dtypes[0]), device="meta")
        parameter = nn.Parameter(data, requires_grad=False)

        def load(parameter: Tensor, loaded: Tensor, shard: int = 0) -> None:
            self.pending.add(slot.name, loaded, shard)

        attach_loader(parameter, load)
        return parameter

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Decode what arrived and hand it to the kernel; without new tensors, do nothing.

        Raises:
            LoadError: a required tensor did not arrive.
        """
        if self.is_finished and self.pending.is_empty:
            return
        weight = self.decoder.decode(self.scheme, self.pending.take(), self.facts)
        tensors = self.kernel.prepare(weight)
        self.value_steps = weight.value_steps
        for slot in self.pending.slots[0]:
            layer._parameters.pop(slot.name, None)
        for name, tensor in tensors.items():
            layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.names = tuple(tensors)
        self.is_finished = True

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias`` as the scheme defines it."""
        result: Tensor = self.kernel.apply(layer._parameters, x, bias)
        return result

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return all parameters but the bias."""
        return tuple(name for name in layer._parameters if name != "bias")

    def __str__(self) -> str:
        return f"{self.selection.scheme}, kernel={self.selection.kernel.name}"
