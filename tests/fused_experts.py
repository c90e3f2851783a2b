"""A kernel that runs experts whole, as a plugin brings it: every token through every expert."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from quantdock.kernel import Kernel, Problem
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.problem import ExpertSet
from quantdock.schemes import SchemeSet, SpecSet

FUSED = Kernel(
    name="all_to_all_experts",
    target="tests.fused_experts:AllExperts",
    kinds=frozenset({"experts"}),
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset({"fp8_e4m3"}), granularities=frozenset({"tensor", "channel"})
        )
    ),
    experts=ExpertSet(activations=frozenset({"silu"}), most_top_k=4, intermediate_multiple=16),
)


class AllExperts:
    """Transposed codes and one scale a row; routing weights are scattered over all experts."""

    def __init__(self, problem: Problem) -> None:
        assert problem.experts is not None
        self.problem, self.experts = problem, problem.experts

    def prepare(self, w13: CanonicalWeight, w2: CanonicalWeight) -> dict[str, Tensor]:
        made = {}
        for name, weight in (("up", w13), ("down", w2)):
            codes = torch.cat([segment.codes.view(torch.uint8) for segment in weight.segments])
            scales = [s.scale.expand(s.codes.shape[0], 1) for s in weight.segments]
            made |= {f"{name}_codes": codes.T.contiguous(), f"{name}_scale": torch.cat(scales)}
        return made

    def restore(self, tensors: Mapping[str, Tensor]) -> tuple[CanonicalWeight, CanonicalWeight]:
        shards = (self.problem.shards, (self.problem.k,))
        specs = (self.problem.scheme.weight, self.experts.w2.weight)
        w13, w2 = (
            self._weight(tensors[f"{name}_codes"], tensors[f"{name}_scale"], sizes, spec)
            for name, sizes, spec in zip(("up", "down"), shards, specs, strict=True)
        )
        return w13, w2

    def _weight(self, codes, scale, sizes, spec) -> CanonicalWeight:
        rows = codes.T.contiguous().view(torch.float8_e4m3fn)
        parts = zip(torch.split(rows, sizes), torch.split(scale, sizes), strict=True)
        return CanonicalWeight(
            segments=tuple(
                Segment(spec=spec, codes=c, scale=s if spec.rows else s[:1]) for c, s in parts
            )
        )

    def apply(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        number = self.experts.num_experts
        routing = x.new_zeros(len(x), number + 1, dtype=torch.float32)
        routing.scatter_(1, topk_ids, topk_weights.float())
        result = x.new_zeros(x.shape, dtype=torch.float32)
        for expert in range(number):
            w13, w2 = self.restore({name: tensor[expert] for name, tensor in tensors.items()})
            gate, up = (x.float() @ w13.dequantize().T).chunk(2, dim=-1)
            out = (F.silu(gate) * up) @ w2.dequantize().T
            result += routing[:, expert, None] * out
        return result.to(x.dtype)

    def warmup(self, m_buckets) -> None:
        pass
