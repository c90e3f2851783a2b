"""The numbers of one layer of experts: its kernels against the oracle, its weights against 16 bits.

Every token goes through every expert here, so that each is judged, whatever the router chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock.diagnosis.base_layers import BaseLayers
from quantdock.diagnosis.layer_numbers import BaseError, Error, base_error
from quantdock.kernels import oracle
from quantdock.layers import FusedMoE
from quantdock.methods.quantized_experts import Matrix, QuantizedExpertsMethod
from quantdock.numerics import CanonicalWeight

# Both products may be off by what their kernel promises, and rounding between them doubles that.
_PRODUCTS, _ROUNDING = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNumbers:
    """The error of the layer's result, and that of each matrix that has a 16-bit weight."""

    error: float
    tolerance: float
    based: dict[str, BaseError]  # by the name of the first shard of each matrix of each expert
    unlike: list[str]  # matrices whose 16-bit weight has another size
    num_nameless: int  # matrices for which the base has no weight of their own


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
    expected = torch.zeros(x.shape, dtype=torch.float64)
    based: dict[str, BaseError] = {}
    unlike: list[str] = []
    num_nameless = 0
    for expert in range(method.num_experts):
        inputs = x
        for place, weight in enumerate(method.restore(module, expert)):
            matrix = method.matrices[place]
            prefixes = [facts.prefix for facts in matrix.facts[expert]]
            if base is not None and all(base.shape(prefix) is None for prefix in prefixes):
                num_nameless += 1
            elif base is not None and (found := _based(matrix, prefixes, weight, inputs, base)):
                based[prefixes[0]] = found
            elif base is not None:
                unlike.append(prefixes[0])
            bias = module._parameters.get(f"{matrix.name}_bias")
            own = None if bias is None else bias[expert].detach().cpu()
            scheme = (method.kernels.w13, method.kernels.w2)[place].scheme
            result = oracle.linear(scheme, weight, inputs, own)
            inputs = module.gate(result) if place == 0 else result
        routing = (weights.double() * (ids == expert)).sum(dim=1, keepdim=True)
        expected += routing * inputs.double()
    error = Error()
    error.add(y.detach().cpu().reshape(x.shape), expected)
    promised = max(s.kernel.tolerance for s in (method.kernels.w13, method.kernels.w2))
    tolerance = _PRODUCTS * _ROUNDING * promised
    return ExpertNumbers(
        error=error.relative,
        tolerance=tolerance,
        based=based,
        unlike=unlike,
        num_nameless=num_nameless,
    )


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
