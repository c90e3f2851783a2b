"""Codes and the real values they stand for: exact both ways, over every code.

>>> import torch
>>> codes = encode(torch.tensor([1.0, 500.0, -0.0]), "fp8_e4m3")
>>> decode(codes, "fp8_e4m3").tolist()
[1.0, 448.0, -0.0]
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, Element
from quantdock.numerics.dtypes import torch_dtype
from quantdock.numerics.small_float import decode_small, encode_small


def element_of(name: str) -> Element:
    """Return the element type called ``name``; raises FormatError for another name."""
    if name not in ELEMENTS:
        raise FormatError(
            f"No element type is called {name!r}.",
            why=[f"known: {', '.join(ELEMENTS)}"],
            todo="Choose one of them.",
        )
    return ELEMENTS[name]


def encode(values: Tensor, element: str) -> Tensor:
    """Return the codes nearest to ``values``: ties to even, out of range to the last finite code.

    NaN stays NaN in float8; an integer, fp6 or fp4 code cannot say NaN, so there it becomes 0.

    Shapes:
        values: any shape, f32, bf16 or f16. Returns the same shape in the element's storage dtype.
    """
    kind = element_of(element)
    if kind.is_float and kind.bits < 8:
        return encode_small(values.to(torch.float32), kind)
    if not kind.is_float:
        values = values.round().nan_to_num_(nan=0.0, posinf=kind.largest, neginf=kind.lowest)
    return values.clamp(kind.lowest, kind.largest).to(torch_dtype(kind.storage))


def decode(codes: Tensor, element: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the real values of ``codes``; exact in f32, bf16 and f16.

    On a CPU float codes are looked up in a table of all 256, which is five times as fast as
    torch's conversion (docs/numerics.md) and the same bit for bit.

    Shapes:
        codes: any shape, in the element's storage dtype. Returns the same shape in ``dtype``.
    Raises:
        FormatError: the codes have another dtype.
    """
    kind = element_of(element)
    storage = torch_dtype(kind.storage)
    if codes.dtype != storage:
        raise FormatError(
            f"{element} codes are {storage}, not {codes.dtype}.",
            todo="View raw bytes as that dtype (tensor.view); never convert them by value.",
        )
    if kind.is_float and kind.bits < 8:
        return decode_small(codes, kind, dtype)
    if not kind.is_float or codes.device.type != "cpu":
        return codes.to(dtype)
    every_code = torch.arange(256, dtype=torch.uint8, device=codes.device).view(storage)
    index = codes.view(torch.uint8).to(torch.int32).reshape(-1)
    return every_code.to(dtype).index_select(0, index).view(codes.shape)
