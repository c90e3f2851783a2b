"""int8 weights and int8 activations through torch's own integer product, where a CPU has one.

``aten::_int_mm`` gives exact int32 sums where the processor has VNNI: a quarter to a half of the
time of a float32 layer. Without VNNI it saturates pairs of products at 16 bits, or is slow, so the
descriptor asks for the feature and extreme values are tried once. Of one column torch 2.13 makes
noise, even with VNNI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from quantdock.kernels.activation import quantize_rows, whole_range
from quantdock.kernels.ops import define, define_without_gradient
from quantdock.kernels.scaled_linear import (
    NAMES,
    OF_CODES,
    SIGNATURE,
    ScaledLinear,
    empty_result,
    empty_result_of_codes,
    gradient_of_input,
    input_rows,
    result_shape,
    row_turns,
    scaled_linear,
    scaled_linear_of_codes,
)
from quantdock.schemes import parse_scheme

LONGEST_SUM = 1 << 16  # columns; 2^16 * 2^14 is half of what an int32 holds


class Int8Mm(ScaledLinear):
    """Runs int8 weights with per-tensor or per-channel scales and symmetric int8 activations."""

    def _operator(self) -> Callable[..., Tensor]:
        return INT8_MM

    def _operator_of_codes(self) -> Callable[..., Tensor]:
        return INT8_MM_OF_CODES


def int8_mm(
    x: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::int8_mm``.

    Raises:
        FormatError: x does not end in K columns.
    """
    named = dict(zip(NAMES, tensors, strict=True))
    weight, weight_scale = named["weight"], named["weight_scale"]
    spec = parse_scheme(scheme).activation
    assert weight is not None and weight_scale is not None and spec is not None, "see _inputs"
    shape = result_shape(x, weight.shape[0], k)
    if shape.numel() == 0 or not _can_take(weight):
        return scaled_linear(x, tensors, bias, scheme, k, sizes)
    rows = input_rows(x, k, named["input_multiplier"])
    whole = whole_range(rows, spec, named["input_scale"], None)
    results = []
    for turn in row_turns(rows.shape[0], max(shape[-1], k)):
        values, row_scale = quantize_rows(rows[turn], spec, whole)
        assert row_scale is not None, "groups of columns are not accepted"
        sums = _scaled_product(values.to(torch.int8), row_scale, weight, weight_scale)
        if spec.is_static:  # a dynamic scale is NaN where x is; the codes cannot say it
            sums.add_(values.sum(dim=1, keepdim=True).mul_(0.0))
        if bias is not None:
            sums.add_(bias)
        results.append(sums.to(x.dtype))
    return torch.cat(results).view(shape)


def int8_mm_of_codes(
    codes: Tensor,
    scale: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    m: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the layer's result [m, N] for codes and scales of x, as QuantizedInput has them."""
    named = dict(zip(NAMES, tensors, strict=True))
    weight, weight_scale = named["weight"], named["weight_scale"]
    assert weight is not None and weight_scale is not None, "every layout has codes and scales"
    if m == 0 or not _can_take(weight):
        return scaled_linear_of_codes(codes, scale, tensors, bias, scheme, k, sizes, m, dtype)
    results = []
    for turn in row_turns(m, max(weight.shape[0], k)):
        row_scale = scale if scale.shape[0] == 1 else scale[turn]
        sums = _scaled_product(codes[turn], row_scale, weight, weight_scale)
        results.append((sums if bias is None else sums.add_(bias)).to(dtype))
    return torch.cat(results)


def _can_take(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.shape[1] > 1 and agrees_with_definition()


def _scaled_product(
    codes: Tensor, row_scale: Tensor, weight: Tensor, weight_scale: Tensor
) -> Tensor:
    return _product(codes, weight).mul_(weight_scale.view(-1)).mul_(row_scale)


def _product(codes: Tensor, weight: Tensor) -> Tensor:
    """Return ``codes @ weight.T`` in f32, of sums that are exact in int32."""
    k = codes.shape[1]
    if k <= LONGEST_SUM:
        return torch._int_mm(codes, weight.t()).to(torch.float32)
    parts = [slice(start, start + LONGEST_SUM) for start in range(0, k, LONGEST_SUM)]
    sums = [torch._int_mm(codes[:, p].contiguous(), weight[:, p].contiguous().t()) for p in parts]
    return torch.stack(sums).sum(dim=0, dtype=torch.int64).to(torch.float32)


@cache
def agrees_with_definition() -> bool:
    """Return whether torch's product is exact on this processor, tried once on extreme values."""
    random = torch.Generator(device="cpu").manual_seed(0)
    codes = torch.randint(-128, 128, (40, 512), generator=random, device="cpu").to(torch.int8)
    codes[0], codes[1], codes[2] = 127, -128, 127
    codes[2, ::2] = -128
    few = codes[:3]
    return all(
        torch.equal(torch._int_mm(rows, codes.t()).double(), rows.double() @ codes.double().T)
        for rows in (few, few[:1], codes)
    )


INT8_MM = define("int8_mm", SIGNATURE, int8_mm, empty_result, gradient_of_input)
INT8_MM_OF_CODES = define_without_gradient(
    "int8_mm_of_codes", OF_CODES, int8_mm_of_codes, empty_result_of_codes
)
