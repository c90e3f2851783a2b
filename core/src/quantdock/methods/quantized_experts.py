"""The method of quantized experts: w13 and w2 of each expert, stacked for one kernel each.

Every expert is decoded and prepared by itself, as a linear layer would be, and written into its
slice of tensors that hold all of them; so any scheme that linear layers have, experts have too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quantdock.errors import LoadError, SaveError, few
from quantdock.kernel import Problem, Selection
from quantdock.kernels.expert_loop import ExpertMatrices
from quantdock.methods.experts import ExpertFacts, ExpertsMethod
from quantdock.methods.pending import PendingWeights
from quantdock.methods.quantized import Decoder
from quantdock.methods.sound_scales import require_sound
from quantdock.numerics.dtypes import dtype_name
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight


@dataclass(slots=True)
class Matrix:
    """One matrix, w13 or w2, of all experts; ``names`` are those of its stacked tensors."""

    name: str
    scheme: Scheme
    sizes: tuple[int, ...]  # output features of each shard
    facts: tuple[tuple[LayerFacts, ...], ...]  # of each expert, of each shard
    selection: Selection
    kernel: Any
    pending: list[PendingWeights]
    names: tuple[str, ...] = ()
    finished: set[int] = field(default_factory=set)

    def own(self, layer: nn.Module) -> dict[str, Tensor]:
        """Return the stacked tensors by the names that the kernel gave them."""
        parameters = layer._parameters
        return {
            name.removeprefix(f"{self.name}_"): tensor
            for name in self.names
            if (tensor := parameters[name]) is not None
        }


class QuantizedExpertsMethod(ExpertsMethod):
    """Runs the experts of one layer; ``value_steps`` says what preparing them cost."""

    def __init__(
        self, decoder: Decoder, schemes: tuple[Scheme, Scheme], dispatch: Dispatch
    ) -> None:
        self.decoder = decoder
        self.schemes = schemes  # of w13 and of w2
        self.dispatch = dispatch
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
        hidden_size: int,
        intermediate_size: int,
        w13_sizes: Sequence[int],
        params_dtype: torch.dtype,
    ) -> None:
        """Choose the kernels and declare what each expert needs, on no device yet.

        Raises:
            NoKernelError: nothing may run w13 or w2.
        """
        self.num_experts = len(experts)
        w13 = [expert.w13 for expert in experts]
        w2 = [expert.w2 for expert in experts]
        self.matrices = (
            self._matrix("w13", self.schemes[0], w13_sizes, hidden_size, w13, params_dtype),
            self._matrix(
                "w2", self.schemes[1], (hidden_size,), intermediate_size, w2, params_dtype
            ),
        )

    def _matrix(
        self,
        name: str,
        scheme: Scheme,
        sizes: Sequence[int],
        k: int,
        facts: Sequence[tuple[LayerFacts, ...]],
        dtype: torch.dtype,
    ) -> Matrix:
        problem = Problem(
            scheme=scheme,
            n=sum(sizes),
            k=k,
            shards=tuple(sizes),
            dtype=dtype_name(dtype),
            repacked=self.decoder.repacked,
        )
        selection = self.dispatch.select(problem, exact=self.decoder.forbids_substitution)
        kernel = resolve_name(selection.kernel.target)(replace(problem, scheme=selection.scheme))
        pending = [
            PendingWeights(
                shards[0].prefix,
                [
                    self.decoder.slots(scheme, n, k, shard)
                    for n, shard in zip(sizes, shards, strict=True)
                ],
            )
            for shards in facts
        ]
        return Matrix(name, scheme, tuple(sizes), tuple(facts), selection, kernel, pending)

    def finish_expert(self, layer: nn.Module, expert: int) -> None:
        """Decode what arrived for one expert and write it into the stacked tensors.

        Raises:
            LoadError: a required tensor of the expert did not arrive.
        """
        prepared = []
        for matrix in self.matrices:
            if matrix.finished and expert in matrix.finished and matrix.pending[expert].is_empty:
                continue
            stored, facts = matrix.pending[expert].take(), matrix.facts[expert]
            weight = self.decoder.decode(matrix.scheme, stored, facts[0])
            if self.requires_sound_scales:
                shards = tuple(shard.prefix for shard in facts)
                together = replace(facts[0], shards=shards if len(shards) > 1 else ())
                require_sound(weight, stored, matrix.pending[expert], together)
            prepared.append((matrix, matrix.kernel.prepare(weight)))
            self.value_steps = tuple(dict.fromkeys((*self.value_steps, *weight.value_steps)))
        for matrix, tensors in prepared:
            self._write(layer, matrix, expert, tensors)
            matrix.finished.add(expert)

    def _write(
        self, layer: nn.Module, matrix: Matrix, expert: int, tensors: Mapping[str, Tensor]
    ) -> None:
        optional: Mapping[str, float] = getattr(matrix.kernel, "optional", {})
        stacks = matrix.own(layer)
        for name in dict.fromkeys((*stacks, *tensors)):
            stack, tensor = stacks.get(name), tensors.get(name)
            is_lone = (stack is None and bool(matrix.finished)) or tensor is None
            if is_lone and name not in optional:
                raise _unlike(matrix, expert, f"{name} is there for some experts only")
            if stack is None:
                assert tensor is not None, "it is in one of the two"
                stack = self._stack(layer, matrix, name, tensor, optional.get(name))
            if tensor is None:
                stack[expert].fill_(optional[name])
                continue
            if stack.shape[1:] != tensor.shape or stack.dtype != tensor.dtype:
                shapes = f"{list(tensor.shape)}, that of others {list(stack.shape[1:])}"
                raise _unlike(matrix, expert, f"its {name} has shape {shapes}")
            stack[expert].copy_(tensor)

    def _stack(
        self, layer: nn.Module, matrix: Matrix, name: str, like: Tensor, fill: float | None
    ) -> Tensor:
        """Return a new tensor for all experts; unset memory is never computed with."""
        data = like.new_empty((self.num_experts, *like.shape))
        if fill is not None:
            data.fill_(fill)
        full = f"{matrix.name}_{name}"
        layer.register_parameter(full, nn.Parameter(data, requires_grad=False))
        matrix.names = (*matrix.names, full)
        return data

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Finish every expert for which tensors arrived; a second call changes nothing.

        Raises:
            LoadError: an expert lacks tensors; names it.
        """
        for expert in range(self.num_experts):
            if any(not matrix.pending[expert].is_empty for matrix in self.matrices):
                self.finish_expert(layer, expert)
        for matrix in self.matrices:
            lost = [str(e) for e in range(self.num_experts) if e not in matrix.finished]
            if lost:
                raise LoadError(
                    f"{matrix.facts[0][0].prefix}: {len(lost)} of {self.num_experts} experts were "
                    "not loaded.",
                    why=[f"{matrix.name} is missing for expert {few(lost)}"],
                    todo="The checkpoint is incomplete: download it again.",
                )

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
                f"{self.matrices[0].facts[0][0].prefix} cannot be restored from its kernel's "
                "layout.",
                why=list(self.value_steps),
                todo="Load the checkpoint again.",
            )
        w13, w2 = (
            matrix.kernel.restore({n: t[expert] for n, t in matrix.own(layer).items()})
            for matrix in self.matrices
        )
        return w13, w2

    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Keep one tensor until the expert is finished; see ExpertsMethod."""
        own = next(m for m in self.matrices if m.name == matrix)
        own.pending[expert].add(name, loaded.clone(), shard)

    def matrices_of(self, layer: nn.Module) -> tuple[ExpertMatrices, ExpertMatrices]:
        """Return w13 and w2 as their kernels want them."""
        w13, w2 = (
            ExpertMatrices(
                kernel=matrix.kernel,
                tensors=matrix.own(layer),
                bias=layer._parameters.get(f"{matrix.name}_bias"),
            )
            for matrix in self.matrices
        )
        return w13, w2

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return all parameters but the biases."""
        return tuple(name for name in layer._parameters if not name.endswith("_bias"))

    def __str__(self) -> str:
        kernels = dict.fromkeys(matrix.selection.kernel.name for matrix in self.matrices)
        schemes = dict.fromkeys(str(matrix.selection.scheme) for matrix in self.matrices)
        return f"{', '.join(schemes)}, kernel={', '.join(kernels)} for each expert"


def _unlike(matrix: Matrix, expert: int, what: str) -> LoadError:
    return LoadError(
        f"{matrix.facts[expert][0].prefix}: {matrix.name} of expert {expert} is unlike the others.",
        why=[what, "the experts of one layer are stacked, so they must be stored alike"],
        todo="Load with quantization='none' to decode the weights to the model's dtype.",
    )
