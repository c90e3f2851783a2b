"""Quantized inputs on NVIDIA GPUs: x, a gate or a norm as codes, each in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec, parse_spec
from quantdock.kernel import Problem
from quantdock.kernels.ops import define_without_gradient
from quantdock.kernels.plain_input import PlainInput
from quantdock_cuda.device import counters, device_of
from quantdock_triton.encoding import Encoding
from quantdock_triton.normalize import normalizer
from quantdock_triton.quantize import quantizer


class CudaInput(PlainInput):
    """Makes the inputs of layers of one scheme; what lies on the CPU is left to plain torch."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._text = str(self.spec)

    def quantize(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x``, and their scales."""
        if not x.is_cuda or x.numel() == 0:
            return super().quantize(x, scale)
        codes, found = CUDA_QUANTIZE_INPUT(x, scale, self._text, False)
        return codes, found

    def silu_mul(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``silu(gate) * up``, and their scales."""
        if not x.is_cuda or x.numel() == 0:
            return super().silu_mul(x, scale)
        codes, found = CUDA_QUANTIZE_INPUT(x, scale, self._text, True)
        return codes, found

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, scale: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of the norm of ``x + residual``, their scales, and the sum."""
        if not x.is_cuda or x.numel() == 0:
            return super().rms_norm(x, weight, eps, scale, residual)
        codes, found, total = CUDA_RMS_NORM_INPUT(x, weight, eps, scale, residual, self._text)
        return codes, found, x if residual is None else total


def converts(spec: QuantSpec, features: frozenset[str]) -> bool:
    """Return whether a GPU converts to the codes of ``spec`` by itself."""
    return "fp8_mma" in features or not ELEMENTS[spec.element].is_float


def quantize_input(
    x: Tensor, input_scale: Tensor | None, spec: str, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return codes and scales; this is the op ``quantdock::cuda_quantize_input``."""
    rows, parsed = _rows(x), parse_spec(spec)
    k = x.shape[-1] // 2 if silu else x.shape[-1]
    facts = device_of(x.get_device())
    num_static = 0 if input_scale is None else input_scale.shape[0]
    ptx, early = converts(parsed, facts.features), "dependent_launch" in facts.features
    together = facts.num_sms if early else 0
    run = quantizer(parsed, k, num_static, ptx, silu, early=early, together=together)
    with torch.cuda.device(x.device):
        return run(rows, input_scale, counters.slots(x.get_device()))


def rms_norm_input(
    x: Tensor,
    weight: Tensor,
    eps: float,
    input_scale: Tensor | None,
    residual: Tensor | None,
    spec: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and the sum; this is the op ``quantdock::cuda_rms_norm_input``.

    Without a residual the sum is empty: an operator may not return what it was given.
    """
    rows, parsed, k = _rows(x), parse_spec(spec), x.shape[-1]
    features = device_of(x.get_device()).features
    num_static = 0 if input_scale is None else input_scale.shape[0]
    ptx, early = converts(parsed, features), "dependent_launch" in features
    run = normalizer(parsed, k, num_static, ptx, early)
    with torch.cuda.device(x.device):
        if residual is None:
            codes, scale, _ = run(rows, weight, eps, input_scale, None)
            return codes, scale, x.new_empty(0)
        codes, scale, total = run(rows, weight, eps, input_scale, _rows(residual))
    return codes, scale, total.view(x.shape)


def _rows(x: Tensor) -> Tensor:
    """Return x [..., K] as [M, K], columns side by side."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _empty_input(
    x: Tensor, input_scale: Tensor | None, spec: str, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return codes and scales without their values, for tracing."""
    k = x.shape[-1] // 2 if silu else x.shape[-1]
    return Encoding(parse_spec(spec), k, False).empty(x.shape[:-1].numel(), x.device)


def _empty_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    input_scale: Tensor | None,
    residual: Tensor | None,
    spec: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and the sum without their values, for tracing."""
    total = x.new_empty(0 if residual is None else x.shape)
    return *_empty_input(x, input_scale, spec, False), total


CUDA_QUANTIZE_INPUT = define_without_gradient(
    "cuda_quantize_input",
    "(Tensor x, Tensor? input_scale, str spec, bool silu) -> (Tensor, Tensor)",
    quantize_input,
    _empty_input,
)
CUDA_RMS_NORM_INPUT = define_without_gradient(
    "cuda_rms_norm_input",
    "(Tensor x, Tensor weight, float eps, Tensor? input_scale, Tensor? residual, str spec)"
    " -> (Tensor, Tensor, Tensor)",
    rms_norm_input,
    _empty_norm,
)
