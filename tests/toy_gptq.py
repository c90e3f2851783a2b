"""The toy Llama in GPTQ and AWQ, written by the inverse of what reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quantdock.configs.awq_codes import encode_awq
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.configs.gptq_tensors import ZeroStorage
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, quantize_weight
from toy_llama import LINEARS, llama

GPTQ: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "desc_act": False,
    "checkpoint_format": "gptq",
}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
}
USUAL = {"gptq": "int4[1x128]", "awq": "uint4[1x128]:zero"}
V1, V2 = ZeroStorage(), ZeroStorage(v2=True)


def packed(weight: Tensor, method: str = "gptq", spec: str = "", **how: Any) -> dict[str, Tensor]:
    """Return what a file of ``method`` stores for ``weight`` [N, K] in ``spec``."""
    made = quantize_weight(weight.float(), parse_spec(spec or USUAL[method]))
    return encode_awq(made, **how) if method == "awq" else encode_gptq(made, **how)


def integer_llama(
    method: str = "gptq", spec: str = "", names: Sequence[str] = LINEARS, **how: Any
) -> dict[str, Tensor]:
    """Return all tensors of the toy Llama, the layers called ``names`` as a file packs them."""
    tensors = llama()
    for name in names:
        parts = packed(tensors.pop(f"{name}.weight"), method, spec, **how)
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return tensors


def in_act_order(n: int, k: int, size: int = 32, seed: int = 0) -> CanonicalWeight:
    """Return random codes whose columns are in whole groups, in any order."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(k // size).repeat_interleave(size)
    index = index[torch.randperm(k, generator=generator)].to(torch.int32)
    segment = Segment(
        spec=parse_spec(f"uint4[1x{size}]:zero:act-order"),
        codes=torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8),
        scale=torch.rand(n, k // size, generator=generator).add(0.1).half().float(),
        zero=torch.randint(0, 16, (n, k // size), generator=generator, dtype=torch.int32),
        group_index=index,
    )
    return CanonicalWeight(segments=(segment,))
