"""The method of quantized experts: w13 and w2 of each expert, stacked for one kernel each.

Every expert is decoded and prepared by itself, as a linear layer would be, and written into its
slice of tensors that hold all of them; so any scheme that linear layers have, experts have too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quantdock.errors import LoadError, SaveError, few
from quantdock.kernels.expert_activation import name_activation
from quantdock.methods.expert_kernels import ExpertKernels, choose_expert_kernels
from quantdock.methods.expert_matrix import Matrix
from quantdock.methods.expert_shape import Cuts, ExpertShape, cut_matrix, regions_of
from quantdock.methods.expert_stacks import misfit, write_expert
from quantdock.methods.experts import ExpertFacts, ExpertsMethod
from quantdock.methods.pending import PendingWeights, unfinished
from quantdock.methods.quantized import Decoder
from quantdock.methods.sound_scales import require_sound
from quantdock.problem import ExpertProblem
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight


class QuantizedExpertsMethod(ExpertsMethod):
    """Runs the experts of one layer; ``value_steps`` says what preparing them cost.

    Attributes:
        kernels: what was chosen to run them. names: of the stacked tensors of that.
    """

    def __init__(
        self,
        decoder: Decoder,
        schemes: tuple[Scheme, Scheme],
        dispatch: Dispatch,
        *,
        promised: tuple[bool, bool] = (False, False),
    ) -> None:
        self.decoder = decoder
        self.schemes = schemes  # of w13 and of w2
        self.promised = promised  # no platform may change these
        self.dispatch = dispatch
        self.names: tuple[str, ...] = ()
        self.value_steps: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.requires_sound_scales = True  # False: to look at a damaged file, as doctor does

    @property
    def scheme(self) -> Scheme:
        """Return the scheme of w13."""
        return self.schemes[0]

    def create_weights(
        self,
        layer: nn.Module,
        experts: Sequence[ExpertFacts],
        shape: ExpertShape,
        gate: Callable[[Tensor], Tensor],
        params_dtype: torch.dtype,
    ) -> None:
        """Choose the kernels and declare what each expert needs, on no device yet.

        Raises:
            NoKernelError: nothing may run w13 or w2.
        """
        self.shape, self.num_experts = shape, len(experts)
        w13, w2 = [e.w13 for e in experts], [e.w2 for e in experts]
        self.matrices = (
            self._matrix("w13", self.schemes[0], shape.w13_sizes, shape.w13_cuts, w13),
            self._matrix("w2", self.schemes[1], (shape.hidden_size,), shape.w2_cuts, w2),
        )
        self._choose = partial(self._chosen, gate, params_dtype)
        self.kernels = self._choose()

    def _matrix(
        self,
        name: str,
        scheme: Scheme,
        sizes: tuple[int, ...],
        cuts: Cuts,
        facts: Sequence[tuple[LayerFacts, ...]],
    ) -> Matrix:
        k, pending = cuts[0][1].k, []
        for shards in facts:
            slots = [
                self.decoder.slots(scheme, n, k, shard)
                for n, shard in zip(sizes, shards, strict=True)
            ]
            online = self.decoder.is_online
            regions = regions_of(slots, cuts, scheme.weight, is_online=online)
            pending.append(PendingWeights(shards[0].prefix, slots, regions))
        return Matrix(name, scheme, sizes, cuts, tuple(facts), pending)

    def _chosen(self, gate: Callable[[Tensor], Tensor], dtype: torch.dtype) -> ExpertKernels:
        repacked, told = self.decoder.repacked, zip(self.matrices, self.promised, strict=True)
        w13, w2 = (matrix.problem(dtype, repacked, promised) for matrix, promised in told)
        order, features = self.shape.w13_order, len(self.shape.own_features)
        experts = ExpertProblem(
            num_experts=self.num_experts,
            intermediate=features,
            w2=w2.scheme,
            equal_groups=w2.equal_groups,
            activation=name_activation(gate, order, intermediate=features),
            top_k=self.shape.top_k,
            w13_order=order,
            has_bias=self.shape.has_bias,
        )
        whole = replace(w13, kind="experts", experts=experts)
        return choose_expert_kernels(whole, w2, self.dispatch, gate)

    def finish_expert(self, layer: nn.Module, expert: int) -> None:
        """Decode what arrived for one expert and write it into the stacked tensors.

        Args:
            expert: its number among those that this rank holds.
        Raises:
            LoadError: a required tensor of the expert did not arrive.
        """
        pending = [matrix.pending[expert] for matrix in self.matrices]
        is_finished = all(expert in matrix.finished for matrix in self.matrices)
        if is_finished and all(arrived.is_empty for arrived in pending):
            return
        w13, w2 = weights = self._weights(expert, pending)
        steps = [step for weight in weights for step in weight.value_steps]
        self.value_steps = tuple(dict.fromkeys((*self.value_steps, *steps)))
        if not self._finished:
            self._follow(weights)
        self._write(layer, expert, self.kernels.kernel.prepare(w13, w2))
        for matrix in self.matrices:
            matrix.finished.add(expert)

    def _follow(self, weights: Sequence[CanonicalWeight]) -> None:
        """Choose the kernels again where the first expert shows groups of unequal size."""
        shown = [m.learn(weight) for m, weight in zip(self.matrices, weights, strict=True)]
        if any(shown):
            self.kernels = self._choose()

    def check_expert(
        self, layer: nn.Module, expert: int, pending: Sequence[PendingWeights]
    ) -> None:
        """Decode and prepare what arrived for w13 and w2 of a loaded expert, and change nothing.

        Raises:
            QuantDockError: loading it would fail.
        """
        w13, w2 = self._weights(expert, pending)
        tensors = self.kernels.kernel.prepare(w13, w2)
        self._require_alike(expert, self.stacks(layer), tensors)

    def _weights(self, expert: int, pending: Sequence[PendingWeights]) -> list[CanonicalWeight]:
        return [self._weight(m, expert, p) for m, p in zip(self.matrices, pending, strict=True)]

    def _weight(self, matrix: Matrix, expert: int, pending: PendingWeights) -> CanonicalWeight:
        """Return this rank's part of what arrived for one matrix of one expert."""
        stored, facts = pending.take(), matrix.facts[expert]
        weight = self.decoder.decode(matrix.scheme, stored, facts[0])
        if self.requires_sound_scales:
            shards = tuple(shard.prefix for shard in facts)
            together = replace(facts[0], shards=shards if len(shards) > 1 else ())
            require_sound(weight, stored, pending, together)
        if any(pending.parts):
            return weight
        return cut_matrix(weight, matrix.sizes, matrix.cuts)

    def _write(self, layer: nn.Module, expert: int, tensors: Mapping[str, Tensor]) -> None:
        stacks = self.stacks(layer)
        if self._finished:
            self._require_alike(expert, stacks, tensors)
        for name, tensor in tensors.items():
            if name not in stacks:
                stacks[name] = self._stack(layer, name, tensor, self._optional.get(name))
        write_expert(stacks, expert, tensors, self._optional)

    @property
    def _optional(self) -> Mapping[str, float]:
        optional: Mapping[str, float] = getattr(self.kernels.kernel, "optional", {})
        return optional

    def _require_alike(
        self, expert: int, stacks: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> None:
        if reason := misfit(stacks, tensors, self._optional):
            prefix = self.matrices[0].facts[expert][0].prefix
            raise LoadError(
                f"{prefix}: expert {self.shape.own_experts[expert]} is unlike the others.",
                why=[reason, "the experts of one layer are stacked, so they must be stored alike"],
                todo="Load with quantization='none' to decode the weights to the model's dtype.",
            )

    def stacks(self, layer: nn.Module) -> dict[str, Tensor]:
        """Return the stacked tensors by the names that the kernel gave them."""
        found = ((name, layer._parameters[name]) for name in self.names)
        return {name: tensor for name, tensor in found if tensor is not None}

    def _stack(self, layer: nn.Module, name: str, like: Tensor, fill: float | None) -> Tensor:
        """Return a new tensor for all experts; unset memory is never computed with."""
        data = like.new_empty((self.num_experts, *like.shape))
        if fill is not None:
            data.fill_(fill)
        layer.register_parameter(name, nn.Parameter(data, requires_grad=False))
        self.names = (*self.names, name)
        return data

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Finish every expert for which tensors arrived; a second call changes nothing.

        Raises:
            LoadError: an expert lacks tensors; names it.
        """
        for expert in range(self.num_experts):
            if any(not matrix.pending[expert].is_empty for matrix in self.matrices):
                self.finish_expert(layer, expert)
        numbers = self.shape.own_experts
        lost = [str(number) for e, number in enumerate(numbers) if e not in self._finished]
        if lost:
            raise LoadError(
                f"{self._prefix}: {len(lost)} of {self.num_experts} experts were not loaded.",
                why=[f"nothing came for expert {few(lost)}"],
                todo="The checkpoint is incomplete: download it again.",
            )

    @property
    def _finished(self) -> set[int]:
        return self.matrices[0].finished

    @property
    def _prefix(self) -> str:
        return self.matrices[0].facts[0][0].prefix

    def discard(self) -> None:
        """Forget what has arrived: a load failed."""
        for matrix in self.matrices:
            for pending in matrix.pending:
                pending.discard()

    def restore(self, layer: nn.Module, expert: int) -> tuple[CanonicalWeight, CanonicalWeight]:
        """Return w13 and w2 of one expert as they were loaded, bit for bit.

        Raises:
            SaveError: values were changed on the way.
        """
        if self.value_steps:
            raise SaveError(
                f"{self._prefix} cannot be restored from its kernel's layout.",
                why=list(self.value_steps),
                todo="Load the checkpoint again.",
            )
        own = {name: stack[expert] for name, stack in self.stacks(layer).items()}
        w13, w2 = self.kernels.kernel.restore(own)
        return w13, w2

    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Keep one tensor until the expert is finished; see ExpertsMethod."""
        if expert not in self.shape.own_experts:
            return
        own = next(m for m in self.matrices if m.name == matrix)
        own.pending[self.shape.own_experts.index(expert)].add(name, loaded.clone(), shard)

    def apply(self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """Return the experts' weighted sum [T, H]; see ExpertsMethod."""
        tensors = self._with_biases(layer)
        result: Tensor = self.kernels.kernel.apply(tensors, x, topk_weights, topk_ids)
        return result

    def apply_partial(
        self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the same in f32, unrounded where the kernel offers that."""
        kernel = self.kernels.kernel
        run: Callable[..., Tensor] = getattr(kernel, "apply_partial", kernel.apply)
        return run(self._with_biases(layer), x, topk_weights, topk_ids).float()

    def _with_biases(self, layer: nn.Module) -> dict[str, Tensor]:
        if not self.names:
            raise unfinished(self._prefix)
        parameters, names = layer._parameters, (*self.names, "w13_bias", "w2_bias")
        return {n: tensor for n in names if (tensor := parameters.get(n)) is not None}

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return all parameters but the biases."""
        return tuple(name for name in layer._parameters if not name.endswith("_bias"))

    def __str__(self) -> str:
        chosen = (self.kernels.w13, self.kernels.w2)
        schemes = dict.fromkeys(str(selection.scheme) for selection in chosen)
        return f"{', '.join(schemes)}, kernel={self.kernels}"
