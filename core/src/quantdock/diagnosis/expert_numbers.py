"""The numbers of one layer of experts: its kernels against the oracle, its weights against 16 bits.

Every token goes through every expert here, so that each is judged, whatever the router chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quantdock.diagnosis.base_layers import BaseLayers
from quantdock.diagnosis.layer_numbers import BaseError, Error, base_error
from quantdock.kernels import oracle
from quantdock.layers import FusedMoE
from quantdock.methods.expert_matrix import Matrix
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.numerics import CanonicalWeight

# Both products may be off by what their kernel promises, and rounding between them doubles that.
_PRODUCTS, _ROUNDING = 2, 2


@dataclass(slots=True)
class ExpertNumbers:
    """The error of the layer's result, and that of each matrix that has a 16-bit weight."""

    error: float = 0.0
    tolerance: float = 0.0
    based: dict[str, BaseError] = field(default_factory=dict)  # by the name of its first shard
    unlike: list[str] = field(default_factory=list)  # matrices that have another size in the base
    num_nameless: int = 0  # matrices for which the base has no weight of their own

    def compare(
        self, matrix: Matrix, expert: int, weight: CanonicalWeight, x: Tensor, base: BaseLayers
    ) -> None:
        """Hold one matrix of one expert against the base, on the inputs ``x``."""
        prefixes = [facts.prefix for facts in matrix.facts[expert]]
        if all(base.shape(prefix) is None for prefix in prefixes):
            self.num_nameless += 1
        elif found := _based(matrix, prefixes, weight, x, base):
            self.based[prefixes[0]] = found
        else:
            self.unlike.append(prefixes[0])


def expert_numbers(
    module: FusedMoE,
    method: QuantizedExpertsMethod,
    given: tuple[Tensor, Tensor, Tensor],
    y: Tensor,
    base: BaseLayers | None,
) -> ExpertNumbers:
    """Return the numbers of ``module``, which made ``y`` of ``given``: x, ids and weights."""
    x, ids, weights = (tensor.detach().cpu() for tensor in given)
    x = x.reshape(-1, x.shape[-1])
    numbers = ExpertNumbers()
    chosen = (method.kernels.w13, method.kernels.w2)
    expected = torch.zeros(x.shape, dtype=torch.float64)
    for expert in range(method.num_experts):
        inputs = x
        # As the kernel has them, whatever was changed at load.
        held = {name: stack[expert].cpu() for name, stack in method.stacks(module).items()}
        for place, weight in enumerate(method.kernels.kernel.restore(held)):
            matrix = method.matrices[place]
            if base is not None:
                numbers.compare(matrix, expert, weight, inputs, base)
            bias = module._parameters.get(f"{matrix.name}_bias")
            own = None if bias is None else bias[expert].detach().cpu()
            result = oracle.linear(chosen[place].scheme, weight, inputs, own)
            inputs = module.gate(result) if place == 0 else result
        routing = (weights.double() * (ids == expert)).sum(dim=1, keepdim=True)
        expected += routing * inputs.double()
    error = Error()
    error.add(y.detach().cpu().reshape(x.shape), expected)
    numbers.error = error.relative
    numbers.tolerance = _PRODUCTS * _ROUNDING * max(s.kernel.tolerance for s in chosen)
    return numbers


def _based(
    matrix: Matrix, prefixes: Sequence[str], weight: CanonicalWeight, x: Tensor, base: BaseLayers
) -> BaseError | None:
    """Return the error of one matrix of one expert; None: the 16-bit one has another size."""
    sizes = [base.shape(prefix) for prefix in prefixes]
    if sizes != [tuple(segment.codes.shape) for segment in weight.segments]:
        return None
    return base_error(matrix.scheme, weight, x, [base.read(prefix) for prefix in prefixes])


def prefixes_of(method: QuantizedExpertsMethod) -> Iterator[str]:
    """Yield the names of every expert's weights in the checkpoint."""
    for matrix in method.matrices:
        for shards in matrix.facts:
            for facts in shards:
                yield facts.prefix
