"""The method of every quantized linear layer: the config decodes, the kernel executes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from quantdock.errors import LoadError, SaveError
from quantdock.kernel import Problem, Selection
from quantdock.kernels.column_order import have_equal_groups
from quantdock.kernels.quantized_input import InputFormat, InputKernel, QuantizedInput
from quantdock.kernels.row_by_row import kernel_of
from quantdock.method import QuantizeMethodBase
from quantdock.methods.cut import Cut, Region, cut_weight, parts_of
from quantdock.methods.input_kernel import can_take, input_kernel, require_taken
from quantdock.methods.pending import PendingWeights, attach_loader, unfinished
from quantdock.methods.slot import Slot
from quantdock.methods.sound_scales import require_sound
from quantdock.methods.written import written
from quantdock.numerics.dtypes import dtype_name, torch_dtype
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight


class Decoder(Protocol):
    """The part of a config that a method needs."""

    is_online: bool
    repacked: bool | None

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors of one shard."""

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight of all shards."""


class QuantizedLinearMethod(QuantizeMethodBase):
    """Runs one scheme; ``selection`` says with which kernel, and ``value_steps`` what it cost."""

    def __init__(
        self,
        decoder: Decoder,
        scheme: Scheme,
        facts: LayerFacts,
        dispatch: Dispatch,
        *,
        promised: bool = False,
    ) -> None:
        self.decoder = decoder
        self.scheme = scheme
        self.promised = promised  # no platform may change the scheme
        self.facts = facts
        self.dispatch = dispatch
        self.value_steps: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()  # what else a user should know of the loaded values
        self.names: tuple[str, ...] = ()  # of the kernel's tensors; empty until they are made
        self._input: InputKernel | None = None  # makes x; chosen when first asked for
        self.requires_sound_scales = True  # False: to look at a damaged file, as doctor does

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
        """Choose the kernel and declare the slots, on no device yet.

        Args:
            cuts: which part of each shard this rank holds; empty: all.
        Raises:
            NoKernelError: nothing may run the layer.
        """
        k, sizes = input_size_per_partition, tuple(output_partition_sizes)
        self.cuts = tuple(cuts) or tuple(Cut.whole(n, k) for n in sizes)
        problem = Problem(
            scheme=self.cuts[0].scheme(self.scheme),
            n=sum(sizes),
            k=k,
            shards=tuple(n for cut in self.cuts for n in cut.segments(self.scheme.weight)),
            dtype=dtype_name(params_dtype),
            has_bias=getattr(layer, "bias", None) is not None,
            repacked=self.decoder.repacked,
            promised=self.promised,
        )
        self._choose(problem)
        slots = [self.decoder.slots(self.scheme, cut.n, cut.k, self.facts) for cut in self.cuts]
        name = self.facts.prefix or type(layer).__name__
        self.pending = PendingWeights(name, slots, self._parts(slots))
        for shards in zip(*slots, strict=True):
            layer.register_parameter(shards[0].name, self._declared(shards))

    def _choose(self, problem: Problem) -> None:
        self.problem, self._input = problem, None
        self.selection: Selection = self.dispatch.select(problem)
        self.kernel = kernel_of(self.selection)

    def _follow(self, weight: CanonicalWeight) -> None:
        """Choose the kernel again where only a stored index has shown how columns are grouped.

        Raises:
            NoKernelError: nothing may run what is stored.
        """
        act_order = weight.segments[0].spec.act_order
        own = replace(self.scheme, weight=replace(self.scheme.weight, act_order=act_order))
        scheme, equal = self.cuts[0].scheme(own), have_equal_groups(weight)
        shown = replace(self.problem, scheme=scheme, equal_groups=equal)
        if shown != self.problem:
            self._choose(shown)

    def _parts(self, slots: Sequence[tuple[Slot, ...]]) -> list[dict[str, Region]]:
        """Return what of each slot is kept, per shard; empty where all of it must be decoded."""
        if all(cut.is_whole for cut in self.cuts):
            return []
        spec, is_online = self.scheme.weight, self.decoder.is_online
        parts = [
            parts_of(shard, cut, spec, is_online=is_online)
            for shard, cut in zip(slots, self.cuts, strict=True)
        ]
        known = [regions for regions in parts if regions is not None]
        return known if len(known) == len(parts) else []

    def _declared(self, shards: Sequence[Slot]) -> nn.Parameter:
        """Return a parameter without memory that stands for one slot of all shards."""
        slot = shards[0]
        shape = slot.shape
        if len(shards) > 1:
            grows = bool(shape) and slot.row_tile is not None
            rows = sum(shard.shape[0] for shard in shards) if grows else len(shards)
            shape = (rows, *shape[1:]) if grows else (rows, *shape)
        data = torch.empty(shape, dtype=torch_dtype(slot.dtypes[0]), device="meta")
        parameter = nn.Parameter(data, requires_grad=False)

        def load(parameter: Tensor, loaded: Tensor, shard: int = 0) -> None:
            self.pending.add(slot.name, loaded.clone(), shard)  # it may be mapped, or used again

        attach_loader(parameter, load)
        return parameter

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Decode what arrived and hand it to the kernel; without new tensors, do nothing.

        Loading again writes into the tensors that are there: their addresses stay, for captured
        graphs, and nothing is written before all of the new weight is ready.

        Raises:
            LoadError: a required tensor did not arrive, or a scale is NaN, infinite or negative.
        """
        if self.names and self.pending.is_empty:
            return
        weight, tensors = self._made(self.pending)
        self.value_steps = weight.value_steps
        self.notes = tuple(_input_notes(weight))
        current = {name: layer._parameters.pop(name, None) for name in self.names}
        for slot in self.pending.slots[0]:
            layer._parameters.pop(slot.name, None)
        for name, tensor in tensors.items():
            layer.register_parameter(name, written(current.get(name), tensor))
        self.names = tuple(tensors)

    def check(self, pending: PendingWeights) -> None:
        """Decode and prepare what arrived in ``pending``, as for loading, and change nothing.

        Raises:
            QuantDockError: loading it would fail.
        """
        chosen = self.problem, self.selection, self.kernel
        try:
            self._made(pending)
        finally:
            self.problem, self.selection, self.kernel = chosen

    def _made(self, pending: PendingWeights) -> tuple[CanonicalWeight, dict[str, Tensor]]:
        """Return the weight that arrived in ``pending``, and the kernel's tensors of it."""
        stored = pending.take()
        weight = self.decoder.decode(self.scheme, stored, self.facts)
        if self.requires_sound_scales:
            require_sound(weight, stored, pending, self.facts)
        if not any(pending.parts):
            weight = cut_weight(weight, self.cuts)
        self._follow(weight)
        _require_shape(weight, self.problem, self.facts)
        # A kernel that wants one scale for all shards folds them here, so that it is recorded.
        fold: Callable[..., CanonicalWeight] | None = getattr(self.kernel, "fold", None)
        weight = weight if fold is None else fold(weight)
        return weight, self.kernel.prepare(weight)

    def restore(self, layer: nn.Module) -> CanonicalWeight:
        """Return the canonical weight that the kernel's tensors came from, bit for bit.

        Raises:
            SaveError: values were changed on the way, so only loading again gives it back.
        """
        if self.value_steps:
            raise SaveError(
                f"{self.facts.prefix} cannot be restored from its kernel's layout.",
                why=list(self.value_steps),
                todo="Load the checkpoint again.",
            )
        weight: CanonicalWeight = self.kernel.restore(layer._parameters)
        return weight

    def apply(
        self, layer: nn.Module, x: Tensor | QuantizedInput, bias: Tensor | None = None
    ) -> Tensor:
        """Return ``x @ weight.T + bias`` as the scheme defines it."""
        if not self.names:  # parameters without memory: torch may compute with them all the same
            raise unfinished(self.pending.name)
        if isinstance(x, QuantizedInput):
            require_taken(x, self.kernel, self.selection.problem, str(self))
            result: Tensor = self.kernel.apply_quantized(layer._parameters, x, bias)
            return result
        result = self.kernel.apply(layer._parameters, x, bias)
        return result

    def input_format(self, layer: nn.Module) -> InputFormat | None:
        """Return what the kernel wants x to be; None where it takes x in 16 bits only."""
        scheme, k = self.selection.scheme, self.problem.k
        if not can_take(self.kernel, self.selection.problem):
            return None
        if self._input is None:
            self._input = input_kernel(self.problem, scheme, self.dispatch)
        assert scheme.activation is not None and k is not None, "see can_take"
        scale = layer._parameters.get("input_scale")
        return InputFormat(spec=scheme.activation, k=k, scale=scale, kernel=self._input)

    def apply_partial(self, layer: nn.Module, x: Tensor | QuantizedInput) -> Tensor:
        """Return ``x @ weight.T`` in f32, unrounded, where the kernel offers that."""
        if isinstance(x, QuantizedInput):
            return self.apply(layer, replace(x, dtype=torch.float32))
        partial: Callable[..., Tensor] | None = getattr(self.kernel, "apply_partial", None)
        if partial is None or not self.names:
            return self.apply(layer, x)
        return partial(layer._parameters, x)

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return all parameters but the bias."""
        return tuple(name for name in layer._parameters if name != "bias")

    @property
    def main_name(self) -> str:
        """Return ``weight``, or what comes first: of the kernel's tensors, or of the slots."""
        names = self.names or tuple(slot.name for slot in self.pending.slots[0])
        return "weight" if "weight" in names else names[0]

    def __str__(self) -> str:
        return f"{self.selection.scheme}, kernel={self.selection.kernel.name}"


def _require_shape(weight: CanonicalWeight, problem: Problem, facts: LayerFacts) -> None:
    """Refuse a weight that says of itself that it belongs to a layer of another size."""
    if weight.shape != (problem.n, problem.k):
        raise LoadError(
            f"The weight of {facts.prefix} is {list(weight.shape)}, as its tensors say.",
            why=[f"the layer has N={problem.n} and K={problem.k}"],
            todo="Load the checkpoint that belongs to this model's config.",
        )


def _input_notes(weight: CanonicalWeight) -> Iterator[str]:
    """Yield that fused shards were calibrated for different inputs, although they have one."""
    scale, zero = weight.input_scale, weight.input_zero
    if scale is None:
        return
    differs = (scale != scale[0]).any()
    used = "the largest is used for all"
    if zero is not None:
        differs = differs | (zero != zero[0]).any()
        used = "one range that holds all of theirs is used"
    if bool(differs):
        word = "scales" if zero is None else "ranges"
        span = f"from {float(scale.amin()):.3g} to {float(scale.amax()):.3g}"
        at = span if zero is None else f"with scales {span}"
        yield f"the input {word} of {scale.numel()} shards differ, {at}: {used}"
