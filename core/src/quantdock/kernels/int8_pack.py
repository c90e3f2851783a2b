"""Weight-only int8 through torch's own CPU kernel, for the few rows of x where it is faster.

``aten::_weight_int8pack_mm`` reads int8 as it lies, so one token costs about half the time of an
unquantized layer. It has limits that crash when broken (16 bytes of alignment, whole vectors of
columns; wider ones with AVX-512), so they are checked here and in the descriptor. Its scales must
be bfloat16: it is given ones, and the true f32 scales multiply its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import (
    SIGNATURE,
    ScaledLinear,
    empty_result,
    gradient_of_input,
    result_shape,
    scaled_linear,
)
from quantdock.numerics import CanonicalWeight

MOST_ROWS = 8  # of x; from about 16 on the reference is as fast, and it rounds once
ALIGNMENT = 64  # bytes
COLUMNS = 16  # K must be a multiple


class Int8Pack(ScaledLinear):
    """Runs int8 weights with per-tensor or per-channel scales and bfloat16 activations."""

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return what ``ScaledLinear`` does, with codes at an address that the kernel takes."""
        tensors = super().prepare(weight)
        if tensors["weight"].data_ptr() % ALIGNMENT:
            tensors["weight"] = tensors["weight"].clone()
        return tensors

    def _operator(self) -> Callable[..., Tensor]:
        return INT8_PACK


def int8_pack(
    x: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::int8_pack``.

    Raises:
        FormatError: x does not end in K columns.
    """
    weight, weight_scale = tensors[:2]
    assert weight is not None and weight_scale is not None, "every layout has codes and scales"
    shape = result_shape(x, weight.shape[0], k)
    m = shape[:-1].numel()
    if not (0 < m <= MOST_ROWS and _can_take(x, weight)):
        return scaled_linear(x, tensors, bias, scheme, k, sizes)
    sums = _product(x.reshape(m, k), weight).float().mul_(weight_scale.view(-1))
    if bias is not None:
        sums.add_(bias)
    return sums.to(x.dtype).view(shape)


def _can_take(x: Tensor, weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and x.dtype == torch.bfloat16
        and weight.shape[1] % COLUMNS == 0
        and weight.data_ptr() % ALIGNMENT == 0
        and weight.is_contiguous()
        and agrees_with_definition()
    )


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return ``rows @ weight.T`` in bfloat16, of the codes as they are."""
    rows = rows.contiguous()
    if rows.data_ptr() % ALIGNMENT:
        rows = rows.clone()
    ones = torch.ones(weight.shape[0], dtype=torch.bfloat16, device=weight.device)
    return torch._weight_int8pack_mm(rows, weight, ones)


@cache
def agrees_with_definition() -> bool:
    """Return whether torch's kernel is right on this processor, tried once on extreme values."""
    every_code = torch.arange(-128, 128, dtype=torch.int16, device="cpu").to(torch.int8)
    codes = every_code.view(8, 32).repeat(2, 2)
    rows = torch.linspace(-3.0, 3.0, 3 * codes.shape[1], device="cpu").view(3, -1)
    rows = rows.to(torch.bfloat16)
    expected = rows.double() @ codes.double().T
    error = (_product(rows, codes).double() - expected).abs().amax()
    return bool(error <= 2.0**-8 * expected.abs().amax())


INT8_PACK = define("int8_pack", SIGNATURE, int8_pack, empty_result, gradient_of_input)
