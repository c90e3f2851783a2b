"""The routed experts of a layer on NVIDIA GPUs, as one operator.

Their tensors are those of the linear kernels that a loop over experts would call, so that a layer
that is offloaded to the CPU runs there, and one that is trained has gradients: by that loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from quantdock.kernel import Problem
from quantdock.kernels.expert_activation import ACTIVATIONS, split_w13
from quantdock.kernels.expert_loop import W2, W13, ExpertLoop
from quantdock.kernels.ops import define_without_gradient, is_unseen
from quantdock.kernels.row_by_row import RowByRow
from quantdock.numerics import CanonicalWeight, join, quantize_weight, torch_dtype
from quantdock_cuda.expert_execution import PRODUCTS, ExpertExecution, Experts, execution
from quantdock_cuda.packed_linear import CudaPackedLinear
from quantdock_cuda.scaled_linear import CudaScaledLinear
from quantdock_cuda.small_float_linear import CudaPackedFloatLinear, CudaSmallFloatLinear


class CudaExperts:
    """Runs all experts at once, without a wait for the GPU; made for one Problem.

    Attributes:
        linear: the kernel of one matrix of one expert. products: key of PRODUCTS.
    """

    linear: ClassVar[type[Any]]
    products: ClassVar[str]

    def __init__(self, problem: Problem) -> None:
        experts = problem.experts
        assert experts is not None, "a kernel of experts is given experts"
        k, i, number = problem.k, experts.intermediate, experts.num_experts
        assert k and i and number and experts.w13_order, "whoever makes a layer knows its sizes"
        activation, order = experts.activation or "", experts.w13_order
        w13 = replace(problem, kind="linear", experts=None)
        w2 = replace(w13, scheme=experts.w2, n=k, k=i, shards=(k,))
        gate = partial(_gated, activation=activation, order=order)  # which can be pickled
        self.problem, self._matrices = problem, (w13, w2)
        made = [self.linear(matrix) for matrix in self._matrices]
        first, second = [RowByRow(one) for one in made] if problem.batch_invariant else made
        self._loop = ExpertLoop(w13=first, w2=second, gate=gate, num_experts=number)
        self._facts = (
            self.products, str(problem.scheme), str(experts.w2), activation, order, k, i,
            problem.batch_invariant,
        )  # fmt: skip
        names = (*PRODUCTS[self.products].NAMES, "bias")
        self._names = tuple(prefix + name for prefix in (W13, W2) for name in names)
        # Where a row of a weight has NaN, which no code stands for, by the place of its bias.
        self._nans = {self._names.index(f"{p}bias"): f"{p}weight_nan" for p in (W13, W2)}
        self._quantizes = problem.scheme.activation is not None
        self.optional = self._loop.optional

    def prepare(self, w13: CanonicalWeight, w2: CanonicalWeight) -> dict[str, Tensor]:
        """Return one expert's weights as the linear kernels have them, as ``w13_`` and ``w2_``."""
        return self._loop.prepare(w13, w2)

    def restore(self, tensors: Mapping[str, Tensor]) -> tuple[CanonicalWeight, CanonicalWeight]:
        """Return w13 and w2 of one expert, bit for bit."""
        return self._loop.restore(tensors)

    def apply(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum of each token's experts [T, H], in x's dtype; see ExpertKernel."""
        if not self._runs(tensors, x, topk_weights):
            return self._loop.apply(tensors, x, topk_weights, topk_ids)
        return self._run(tensors, x, topk_weights, topk_ids, in_f32=False)

    def apply_partial(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum in f32, not rounded: a sum over ranks is rounded once."""
        if not self._runs(tensors, x, topk_weights):
            return self._loop.apply_partial(tensors, x, topk_weights, topk_ids)
        return self._run(tensors, x, topk_weights, topk_ids, in_f32=True)

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Compile for numbers of tokens like these, with experts of zeros.

        Afterwards the layer can be captured into a CUDA graph.
        """
        experts, dtype = self.problem.experts, torch_dtype(self.problem.dtype or "bfloat16")
        assert experts is not None and experts.num_experts, "__init__ has seen them"
        one = self.prepare(*(zeros(matrix) for matrix in self._matrices))
        stacked = {n: t.new_zeros((experts.num_experts, *t.shape)) for n, t in one.items()}
        for prefix, matrix in zip((W13, W2), self._matrices, strict=True):
            if experts.has_bias:
                shape = (experts.num_experts, matrix.n or 0)
                stacked[f"{prefix}bias"] = torch.zeros(shape, dtype=dtype, device="cuda")
        for tokens in m_buckets:
            x = torch.zeros((tokens, self.problem.k or 0), dtype=dtype, device="cuda")
            weights = torch.zeros((tokens, experts.top_k or 1), device="cuda")
            self.apply(stacked, x, weights, weights.to(torch.int64))

    def _runs(self, tensors: Mapping[str, Tensor], x: Tensor, weights: Tensor) -> bool:
        """Return whether x is on a GPU, of a dtype that is multiplied, and nothing is trained."""
        if not x.is_cuda or not (self._quantizes or x.dtype != torch.float32):
            return False
        if not torch.is_grad_enabled():
            return True
        given = (x, weights, tensors.get(f"{W13}bias"), tensors.get(f"{W2}bias"))
        return not any(t is not None and t.requires_grad for t in given)

    def _run(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        *,
        in_f32: bool,
    ) -> Tensor:
        others = [tensors.get(name) for name in self._names]
        for place, name in self._nans.items():
            if name in tensors:
                bias, nan = others[place], tensors[name]
                others[place] = nan if bias is None else bias + nan
        if is_unseen(x):
            dtype = torch.float32 if in_f32 else x.dtype
            return _computed(self._facts, x, weights, ids, others, dtype)
        *w13, w13_bias = others[: len(others) // 2]
        *w2, w2_bias = others[len(others) // 2 :]
        given = (x, weights, ids, w13, w2, w13_bias, w2_bias)
        result: Tensor = CUDA_EXPERTS(*given, *self._facts, in_f32)
        return result


def _gated(hidden: Tensor, *, activation: str, order: str) -> Tensor:
    """Return what w2 takes of what w13 returned."""
    return ACTIVATIONS[activation](*split_w13(hidden, order))


def zeros(matrix: Problem, device: str = "cuda") -> CanonicalWeight:
    """Return a weight of zeros, as ``matrix`` has it, with input scales of 1 if they are stored."""
    shards, spec = matrix.shards or (matrix.n or 0,), matrix.scheme.weight
    sizes = [(n, matrix.k or 0) for n in shards]
    weight = join([quantize_weight(torch.zeros(size, device=device), spec) for size in sizes])
    if matrix.scheme.is_static:
        weight = replace(weight, input_scale=torch.ones(len(shards), device=device))
    return weight


class CudaScaledExperts(CudaExperts):
    """Experts of fp8 and int8 weights."""

    linear, products = CudaScaledLinear, "scaled"


class CudaSmallFloatExperts(CudaExperts):
    """Experts of fp4 and fp6 weights."""

    linear, products = CudaSmallFloatLinear, "small_float"


class CudaPackedFloatExperts(CudaExperts):
    """Experts of fp4 weights in blocks, on GPUs with asynchronous tensor cores."""

    linear, products = CudaPackedFloatLinear, "packed_float"

    def _runs(self, tensors: Mapping[str, Tensor], x: Tensor, weights: Tensor) -> bool:
        """Return whether x is bfloat16 besides: codes times powers of two are."""
        return x.dtype == torch.bfloat16 and super()._runs(tensors, x, weights)


class CudaPackedExperts(CudaExperts):
    """Experts of integer weights of 2 to 8 bits."""

    linear, products = CudaPackedLinear, "packed"


def cuda_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    w13: Sequence[Any],
    w2: Sequence[Any],
    w13_bias: Tensor | None,
    w2_bias: Tensor | None,
    products: str,
    w13_scheme: str,
    w2_scheme: str,
    activation: str,
    order: str,
    hidden: int,
    intermediate: int,
    batch_invariant: bool,
    in_f32: bool,
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::cuda_experts``."""
    facts = (products, w13_scheme, w2_scheme, activation, order, hidden, intermediate)
    others = (*w13, w13_bias, *w2, w2_bias)
    dtype = torch.float32 if in_f32 else x.dtype
    return _computed((*facts, batch_invariant), x, weights, ids, others, dtype)


def _computed(
    facts: tuple[Any, ...],
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    others: Sequence[Any],
    dtype: torch.dtype,
) -> Tensor:
    """Return the layer's result in ``dtype``; others: as for ``ExpertExecution``.

    Args:
        facts: of the layer, as ``_execution`` takes them.
    """
    scales = others[1], others[len(others) // 2 + 1]
    sizes = (others[0].shape[0], scales[0].shape[1], scales[1].shape[1], x.get_device())
    run = _execution(facts, sizes)
    if dtype == x.dtype:
        again = run.again(x, weights, ids, others)
        if again is not None:
            return again
    if ids.numel() == 0:
        return x.new_zeros(x.shape, dtype=dtype)
    rows = x if x.stride(1) == 1 else x.contiguous()
    with torch.cuda.device(x.device):
        return run(rows, weights.contiguous(), ids.contiguous(), others, dtype)


@lru_cache(maxsize=1 << 12)
def _execution(facts: tuple[Any, ...], sizes: tuple[int, int, int, int]) -> ExpertExecution:
    """Return what runs the experts of ``facts``.

    Args:
        facts: as a layer has them. sizes: experts, rows of the scales of w13 and of w2, and GPU.
    """
    products, w13_scheme, w2_scheme, activation, order, hidden, intermediate, alone = facts
    num_experts, *scale_rows, device = sizes
    experts = Experts(
        products=products,
        schemes=(w13_scheme, w2_scheme),
        activation=activation,
        order=order,
        num_experts=num_experts,
        hidden=hidden,
        intermediate=intermediate,
        alone=alone,
    )
    return execution(experts, (scale_rows[0], scale_rows[1]), device)


def _empty_result(x: Tensor, *others: Any) -> Tensor:
    """Return the result without its values, for tracing."""
    return x.new_empty(x.shape, dtype=torch.float32 if others[-1] else x.dtype)


CUDA_EXPERTS = define_without_gradient(
    "cuda_experts",
    "(Tensor x, Tensor weights, Tensor ids, Tensor?[] w13, Tensor?[] w2, Tensor? w13_bias,"
    " Tensor? w2_bias, str products, str w13_scheme, str w2_scheme, str activation, str order,"
    " SymInt hidden, SymInt intermediate, bool batch_invariant,"
    " bool in_f32) -> Tensor",
    cuda_experts,
    _empty_result,
)
