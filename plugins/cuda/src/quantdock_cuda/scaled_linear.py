"""The linear layer of 8-bit scaled weights on NVIDIA GPUs, as one operator.

Its tensors are the plain layout of the core, so that a layer that is offloaded to the CPU still
runs there, by the core's kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantdock.kernels.ops import define
from quantdock.kernels.quantized_input import QuantizedInput
from quantdock.kernels.scaled_linear import (
    NAMES,
    ScaledLinear,
    gradient_of_input,
    result_shape,
    scaled_linear,
)
from quantdock.numerics import join, quantize_weight, torch_dtype
from quantdock_cuda.execution import Execution, execution
from quantdock_cuda.linear_of_codes import CUDA_LINEAR_OF_CODES


class CudaScaledLinear(ScaledLinear):
    """Runs fp8 and int8 weights, with quantized activations or with those given."""

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        return CUDA_SCALED_LINEAR(
            x,
            tensors["weight"],
            tensors["weight_scale"],
            tensors.get("weight_nan"),
            tensors.get("input_scale"),
            bias,
            self._scheme,
            self._sizes,
            self.problem.batch_invariant,
        )

    def apply_quantized(
        self, tensors: Mapping[str, Tensor], x: QuantizedInput, bias: Tensor | None
    ) -> Tensor:
        """Return what ``apply`` returns for the x that was quantized, in x's dtype."""
        result: Tensor = CUDA_LINEAR_OF_CODES(
            x.codes,
            x.scale,
            tensors["weight"],
            tensors["weight_scale"],
            tensors.get("weight_nan"),
            bias,
            self._scheme,
            self._sizes,
            x.shape[:-1].numel(),
            x.dtype,
        )
        return result.view(*x.shape[:-1], result.shape[1])

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Compile for numbers of rows like these, and let libraries allocate what they keep.

        Afterwards the layer can be captured into a CUDA graph.
        """
        problem = self.problem
        if problem.n is None or problem.k is None:
            return
        device, dtype = torch.device("cuda"), torch_dtype(problem.dtype or "bfloat16")
        sizes = problem.shards or (problem.n,)
        shards = [torch.zeros((n, problem.k), dtype=dtype, device=device) for n in sizes]
        weight = join([quantize_weight(shard, problem.scheme.weight) for shard in shards])
        if problem.scheme.is_static:
            weight = replace(weight, input_scale=torch.ones(len(sizes), device=device))
        tensors = self.prepare(weight)
        bias = torch.zeros(problem.n, dtype=dtype, device=device) if problem.has_bias else None
        for m in m_buckets:
            self.apply(tensors, torch.zeros((m, problem.k), dtype=dtype, device=device), bias)


def cuda_scaled_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_nan: Tensor | None,
    input_scale: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    sizes: Sequence[int],
    batch_invariant: bool,
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::cuda_scaled_linear``.

    Raises:
        FormatError: x does not end in K columns.
    """
    n, k = weight.shape
    if not x.is_cuda:
        named = {
            "weight": weight,
            "weight_scale": weight_scale,
            "weight_nan": weight_nan,
            "input_scale": input_scale,
        }
        return scaled_linear(x, [named.get(name) for name in NAMES], bias, scheme, k, sizes)
    run = execution(
        scheme,
        n,
        k,
        weight_scale.shape[0],
        0 if input_scale is None else input_scale.shape[0],
        x.dtype,
        None if bias is None else bias.dtype,
        x.get_device(),
        batch_invariant,
    )
    others = (weight, weight_scale, input_scale, bias)
    result = run.replays((x.shape, weight_scale.stride()), x, *others)
    if result is None:
        with torch.cuda.device(x.device):
            result = _in_rows(run, x, n, k, others)
    return result if weight_nan is None else result + weight_nan.to(result.dtype)


def _in_rows(run: Execution, x: Tensor, n: int, k: int, others: Sequence[Any]) -> Tensor:
    """Return the result for x of any strides."""
    shape = result_shape(x, n, k)
    if shape.numel() == 0:
        return x.new_empty(shape)
    rows = x.reshape(-1, k)
    return run(rows if rows.stride(1) == 1 else rows.contiguous(), *others).view(shape)


def _empty_result(x: Tensor, weight: Tensor, *others: object) -> Tensor:
    """Return the result without its values, for tracing."""
    n, k = weight.shape
    return x.new_empty(result_shape(x, n, k))


def _gradient(
    gradient: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_nan: Tensor | None,
    input_scale: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    sizes: Sequence[int],
    batch_invariant: bool,
) -> Tensor:
    """Return the gradient of x [..., K] from that of the result [..., N]."""
    named = {"weight": weight, "weight_scale": weight_scale}
    given = [named.get(name) for name in NAMES]
    return gradient_of_input(gradient, given, bias, scheme, weight.shape[1], sizes)


CUDA_SCALED_LINEAR = define(
    "cuda_scaled_linear",
    "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? weight_nan, Tensor? input_scale,"
    " Tensor? bias, str scheme, SymInt[] sizes, bool batch_invariant) -> Tensor",
    cuda_scaled_linear,
    _empty_result,
    _gradient,
)
