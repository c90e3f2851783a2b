"""The linear layer of an x that is codes already: the product alone, as one operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.kernels.ops import define_without_gradient
from quantdock.kernels.scaled_linear import NAMES, scaled_linear_of_codes
from quantdock_cuda.execution import execution
from quantdock_triton.encoding import ROW_MULTIPLE


def cuda_linear_of_codes(
    codes: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_nan: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    sizes: Sequence[int],
    m: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the result [m, N]; this is the op ``quantdock::cuda_linear_of_codes``.

    Shapes:
        codes: [m or more, K]. scale: f32 [1, 1], or as many rows as codes and a column a group.
    """
    n, k = weight.shape
    if not codes.is_cuda:
        named = {"weight": weight, "weight_scale": weight_scale, "weight_nan": weight_nan}
        given = [named.get(name) for name in NAMES]
        return scaled_linear_of_codes(codes, scale, given, bias, scheme, k, sizes, m, dtype)
    if m == 0:
        return codes.new_empty((0, n), dtype=dtype)
    bias_dtype = None if bias is None else bias.dtype
    device = codes.get_device()
    run = execution(scheme, n, k, weight_scale.shape[0], 0, dtype, bias_dtype, device)
    with torch.cuda.device(codes.device):
        codes, scale = as_written(codes, scale)
        result = run.multiply(codes, scale, weight, weight_scale, bias, m)
    return result if weight_nan is None else result + weight_nan.to(result.dtype)


def as_written(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return both laid out as the quantization of this platform writes them, which products read.

    Their rows are a multiple of 4, and the scales of a group lie side by side.
    """
    missing = -codes.shape[0] % ROW_MULTIPLE
    if missing:
        codes = pad(codes.view(torch.uint8), (0, 0, 0, missing)).view(codes.dtype)
    codes, rows = codes.contiguous(), codes.shape[0]
    if scale.numel() == 1:
        return codes, scale.reshape(1, 1)
    if scale.shape[0] != rows or scale.stride() != (1, rows):
        columns = pad(scale.t(), (0, rows - scale.shape[0]))
        scale = columns.contiguous().t()
    return codes, scale


def _empty_result(codes: Tensor, scale: Tensor, weight: Tensor, *others: object) -> Tensor:
    """Return the result without its values, for tracing."""
    m, dtype = others[-2:]
    assert isinstance(dtype, torch.dtype), "the last argument"
    return codes.new_empty((m, weight.shape[0]), dtype=dtype)  # type: ignore[arg-type]


CUDA_LINEAR_OF_CODES = define_without_gradient(
    "cuda_linear_of_codes",
    "(Tensor codes, Tensor scale, Tensor weight, Tensor weight_scale, Tensor? weight_nan,"
    " Tensor? bias, str scheme, SymInt[] sizes, SymInt m, ScalarType dtype) -> Tensor",
    cuda_linear_of_codes,
    _empty_result,
)
