"""x @ weight.T of fp4 weights, with x in fp4 or fp8: every 32 inputs have a power of two.

The NPU reads weights input by input, so the layout is transposed: two outputs share a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quantdock import numerics
from quantdock.kernel import Problem
from quantdock.numerics import CanonicalWeight, Segment


class MxProduct:
    """One layer's product; ``problem`` has its scheme and sizes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` uint8 [K, N / 2, rounded up] and ``weight_scale`` uint8 [K / 32, N]."""
        codes = torch.cat([segment.codes for segment in weight.segments]).T
        scale = torch.cat([segment.scale for segment in weight.segments]).T
        even = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        return {
            "weight": numerics.pack_bytes(even.contiguous(), bits=4),
            "weight_scale": numerics.encode_scale(scale.contiguous(), "uint8"),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return what ``prepare`` got, bit for bit."""
        scale = numerics.decode_scale(tensors["weight_scale"]).T
        codes = numerics.unpack_bytes(tensors["weight"], bits=4)[:, : scale.shape[0]].T
        sizes = list(self.problem.shards) or [len(codes)]
        parts = zip(torch.split(codes, sizes), torch.split(scale, sizes), strict=True)
        spec = self.problem.scheme.weight
        return CanonicalWeight(
            segments=tuple(Segment(spec=spec, codes=c, scale=s) for c, s in parts)
        )

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias in x's dtype; x is [..., K]."""
        spec = self.problem.scheme.activation
        assert spec is not None, "the descriptor takes schemes with activations only"
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0]:
            made = numerics.quantize(rows, spec)
            rows = numerics.dequantize(made.codes, made.scale, spec)
        result = rows.float() @ self.restore(tensors).dequantize().T
        result = result if bias is None else result + bias
        return result.to(x.dtype).view(*x.shape[:-1], result.shape[-1])

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Do nothing: there is nothing to compile."""
