"""e4m3fn codes as e4m3fnuz codes, and back, without changing a value.

The same bits mean half as much in e4m3fnuz, so the scale doubles. The one code that differs in
kind is 0x80: negative zero in e4m3fn, NaN in e4m3fnuz; it becomes 0x00. The NaNs of e4m3fn (0x7f,
0xff) become 0x80.

>>> import torch
>>> codes = torch.tensor([1.0, -0.0, 448.0]).to(torch.float8_e4m3fn)
>>> fnuz, scale = to_fnuz(codes, torch.tensor(0.5))
>>> fnuz.to(torch.float32).tolist(), scale.item()
([0.5, 0.0, 224.0], 1.0)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import EXPONENT_BYTES
from quantdock.numerics.dtypes import dtype_name

_MAGNITUDE = 0x7F
_FNUZ_NAN = 0x80
_LARGEST_BYTE = 254  # 255 is NaN


def to_fnuz(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e4m3fnuz codes, doubled scale) that decode to the same values; -0 becomes 0.

    Shapes:
        codes: any shape. scale: any shape and storage, see double_scale.
    Raises:
        FormatError: the codes are not e4m3fn, for instance because they were converted before.
    """
    _require(codes, torch.float8_e4m3fn)
    bits = codes.view(torch.uint8)
    magnitude = bits & _MAGNITUDE
    fnuz = torch.where(magnitude == 0, 0, bits)
    fnuz = torch.where(magnitude == _MAGNITUDE, _FNUZ_NAN, fnuz)
    return fnuz.view(torch.float8_e4m3fnuz), double_scale(scale)


def from_fnuz(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return (e4m3fn codes, halved scale): what ``to_fnuz`` was given, except that -0 is 0.

    Raises:
        FormatError: the codes are not e4m3fnuz, or hold 240.0, which e4m3fn cannot say (480.0).
    """
    _require(codes, torch.float8_e4m3fnuz)
    bits = codes.view(torch.uint8)
    beyond = (bits & _MAGNITUDE) == _MAGNITUDE
    if bool(beyond.any()):
        raise FormatError(
            f"{int(beyond.sum())} of {codes.numel()} e4m3fnuz codes have no e4m3fn code.",
            why=["they are +-240.0; with half the scale that is 480.0, beyond e4m3fn's 448.0"],
            todo="Dequantize, and quantize the real values to fp8_e4m3.",
        )
    fn = torch.where(bits == _FNUZ_NAN, _MAGNITUDE, bits)
    return fn.view(torch.float8_e4m3fn), halve_scale(scale)


def double_scale(scale: Tensor) -> Tensor:
    """Return ``scale`` times two in its own storage; exponent bytes saturate at 2^127.

    A static activation scale that belongs to converted codes doubles likewise.
    """
    return _step_scale(scale, 1)


def halve_scale(scale: Tensor) -> Tensor:
    """Return ``scale`` divided by two in its own storage; exponent bytes saturate at 2^-127."""
    return _step_scale(scale, -1)


def _step_scale(scale: Tensor, step: int) -> Tensor:
    if dtype_name(scale.dtype) not in EXPONENT_BYTES:
        return scale * 2.0**step
    byte = scale.view(torch.uint8)
    moved = (byte.to(torch.int16) + step).clamp(0, _LARGEST_BYTE).to(torch.uint8)
    return torch.where(byte > _LARGEST_BYTE, byte, moved).view(scale.dtype)


def _require(codes: Tensor, dtype: torch.dtype) -> None:
    if codes.dtype != dtype:
        raise FormatError(
            f"The codes to convert are {codes.dtype}, not {dtype}.",
            why=["a second conversion would change every value"],
            todo="Convert once, from the dtype that the checkpoint stores.",
        )
