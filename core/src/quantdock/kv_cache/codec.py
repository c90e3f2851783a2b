"""Keys or values as codes, and back: x / scale to the nearest code, code * scale in f32.

The rules are those of every tensor (docs/numerics.md): true division, ties to even, out of range
becomes the last finite code, NaN stays NaN. A value on the grid comes back bit for bit.

>>> import torch
>>> codec = KVCodec("fp8_e4m3", KVScale.of(torch.tensor(0.5)))
>>> codes, scale = codec.encode(torch.tensor([[[[1.5, 1000.0]]]]))
>>> codec.decode(codes, scale, torch.float32).tolist()
[[[[1.5, 224.0]]]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.kernels.decode import Decoder, has_lost_nan
from quantdock.kv_cache.scales import KVScale
from quantdock.numerics import choose_scale, decode, encode, torch_dtype


class KVCodec:
    """Encodes and decodes the keys, or the values, of one layer.

    Args:
        element: of the codes, one byte each.
        scale: static; None computes one from each vector [D].
    """

    def __init__(self, element: str, scale: KVScale | None = None) -> None:
        self.element = element
        self.storage = torch_dtype(ELEMENTS[element].storage)
        self._vector = QuantSpec(element=element, rows=1, dynamic=True)
        self._factor: Tensor | None = None  # the static scale, of a shape that multiplies
        if scale is not None:
            tensor = scale.tensor
            self._factor = tensor if tensor.dim() == 0 else tensor.view(1, -1, 1, 1)

    @property
    def is_dynamic(self) -> bool:
        """Return whether scales are computed, and so have to be kept beside the codes."""
        return self._factor is None

    def memory(self, width: int) -> tuple[int, int, torch.dtype]:
        """Return bytes of codes, number of scales and their dtype, of a vector of ``width``."""
        return width, int(self.is_dynamic), torch.float32

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the codes of ``x`` and the scales that were computed for them, if any.

        Shapes:
            x: float [B, H, T, D]. Returns codes [B, H, T, D] in the element's storage dtype and
            f32 [B, H, T, 1], or None where the scale is static.
        Raises:
            FormatError: there is one static scale a head, and ``x`` has another number of heads.
        """
        values = x.detach().to(torch.float32)
        if not self.is_dynamic:
            return encode(values / self._static(values), self.element), None
        scale = choose_scale(values.abs().amax(-1, keepdim=True), self._vector)
        return encode(values / scale, self.element), scale

    def decode(
        self, codes: Tensor, scale: Tensor | None, dtype: torch.dtype, has_nan: bool | None = None
    ) -> Tensor:
        """Return the real values of ``codes``: one f32 product, rounded once to ``dtype``.

        Shapes:
            as in ``encode``; the result is contiguous.
        Args:
            has_nan: what ``has_nan(codes)`` is, where the caller knows; it saves a look at them.
        """
        factor = self._static(codes) if scale is None else scale
        if codes.device.type != "cpu":
            return codes.to(torch.float32).mul_(factor).to(dtype)
        if self.has_nan(codes) if has_nan is None else has_nan:
            return decode(codes, self.element).mul_(factor).to(dtype)
        decoder = Decoder(self.element)  # a fresh one: its memory must not outlive this call
        return decoder(codes).mul_(factor * decoder.unit).to(dtype)

    def has_nan(self, codes: Tensor) -> bool:
        """Return whether a code is a NaN that the fast way of decoding would miss."""
        return bool(has_lost_nan(codes.reshape(1, -1), self.element))

    def _static(self, like: Tensor) -> Tensor:
        """Return the static scale on the device of ``like`` [B, H, T, D]."""
        factor = self._factor
        assert factor is not None, "a dynamic scale is given with its codes"
        if factor.numel() not in (1, like.shape[1]):
            raise FormatError(
                f"The KV cache has {like.shape[1]} heads here, and {factor.numel()} scales.",
                why=["one scale belongs to each head"],
                todo="Give each process the scales of its own heads.",
            )
        if factor.device != like.device:
            factor = self._factor = factor.to(like.device)
        return factor
