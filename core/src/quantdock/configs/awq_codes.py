"""AWQ's words into codes, scales and zero points, and back, in each of AutoAWQ's layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.configs.awq_layouts import BITS, PER_WORD, padded_groups
from quantdock.configs.group_codes import (
    only_segment,
    require_middle,
    with_sign,
    without_sign,
    zeros_without_sign,
)
from quantdock.errors import LoadError
from quantdock.formats import QuantSpec
from quantdock.numerics.canonical import CanonicalWeight, Segment
from quantdock.numerics.packing import pack_bits, unpack_bits
from quantdock.numerics.scales import decode_scale
from quantdock.schemes import LayerFacts

# The column, of eight, that each code of a gemm word holds, lowest bits first; and the inverse.
_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
# A product of a zero point and its scale in f16 is at most 15 * 2^-11 zero points from exact.
_LARGEST_ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How one layout packs what it stores.

    Shapes:
        codes: uint8 [N, K]. scales: [N, groups or more]. zeros: uint8, as scales.
    """

    codes: Callable[[Tensor], Tensor]
    pack_codes: Callable[[Tensor], Tensor]
    scales: Callable[[Tensor], Tensor]
    pack_scales: Callable[[Tensor, int], Tensor]  # with the columns of a group
    zeros: Callable[[str, Tensor, Tensor], Tensor]  # of a module's name, qzeros, scales [N, groups]
    pack_zeros: Callable[[Tensor, Tensor], Tensor]  # of zeros and scales as stored


def decode(
    spec: QuantSpec, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts, version: str
) -> CanonicalWeight:
    """Return the canonical weight of a layer's shards; see ``decode_awq``."""
    names = facts.shards or (facts.prefix,) * len(stored)
    packing = PACKINGS[version]
    segments = []
    for name, tensors in zip(names, stored, strict=True):
        codes = packing.codes(tensors["qweight"])
        _, groups = spec.grid(*codes.shape)
        scale = decode_scale(packing.scales(tensors["scales"])[:, :groups]).contiguous()
        zeros = _zeros(name, tensors, packing, scale)
        if zeros is not None and not spec.zero:
            require_middle(name, zeros, spec, "zero_point = False")
        segments.append(
            Segment(
                spec=spec,
                codes=with_sign(codes, spec),
                scale=scale,
                zero=zeros.to(torch.int32) if zeros is not None and spec.zero else None,
            )
        )
    return CanonicalWeight(segments=tuple(segments))


def encode_awq(
    weight: CanonicalWeight, version: str = "gemm", scale_dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """Return the tensors that an AWQ file stores for ``weight``: the inverse of decoding.

    Raises:
        FormatError: AWQ cannot store it: several segments, other elements or tiles.
    """
    segment = only_segment(weight, "awq", BITS)
    packing, (_, k) = PACKINGS[version], weight.shape
    scales = packing.pack_scales(segment.scale.to(scale_dtype), segment.spec.cols or k)
    return {
        "qweight": packing.pack_codes(without_sign(segment)),
        "qzeros": packing.pack_zeros(zeros_without_sign(segment), scales),
        "scales": scales,
    }


def _zeros(
    name: str, tensors: Mapping[str, Tensor], packing: Packing, scale: Tensor
) -> Tensor | None:
    """Return the zero points [N, groups]; None where a default stands for what is not stored."""
    qzeros = tensors.get("qzeros")
    if qzeros is None or (qzeros.is_floating_point() and packing is not PACKINGS["gemv_fast"]):
        return None
    return packing.zeros(name, qzeros, scale)[:, : scale.shape[1]].contiguous()


def _reordered(codes: Tensor, order: list[int]) -> Tensor:
    """Return ``codes`` [..., 8 C] with each eight of them in another order."""
    return codes.view(*codes.shape[:-1], -1, PER_WORD)[..., order].flatten(-2)


def _unpack(words: Tensor) -> Tensor:
    return unpack_bits(words, bits=4, count=words.shape[-1] * PER_WORD)


def _gemm_codes(words: Tensor) -> Tensor:
    """Return [N, C] of words [C, N / 8], where C is K or the number of groups."""
    return _reordered(_unpack(words), _PLACES).t().contiguous()


def _pack_gemm(codes: Tensor) -> Tensor:
    return pack_bits(_reordered(codes.t().contiguous(), _COLUMNS), bits=4)


def _padded(grid: Tensor, size: int) -> Tensor:
    """Return a scale grid [N, groups] with columns of zeros up to what gemv's kernels read."""
    return pad(grid, (0, padded_groups(grid.shape[1], size) - grid.shape[1]))


def _pack_gemv_zeros(zeros: Tensor, scales: Tensor) -> Tensor:
    return pack_bits(pad(zeros, (0, scales.shape[1] - zeros.shape[1])), bits=4)


def _fast_codes(words: Tensor) -> Tensor:
    """Return [N, K] of int16 words [N / 4, K]: four rows lie in 64 words, one after the other.

    Within a row 32 columns are stored as 4 x 4 pairs, transposed, and then each eight of them with
    the even ones first.
    """
    bands, k = words.shape
    nibbles = torch.stack([(words >> shift) & 15 for shift in (0, 4, 8, 12)], dim=-1)
    rows = nibbles.to(torch.uint8).view(bands, k // 64, 4, 64).transpose(1, 2)
    pairs = _reordered(rows.reshape(bands * 4, k), _PLACES).view(bands * 4, k // 32, 4, 4, 2)
    return pairs.transpose(2, 3).reshape(bands * 4, k)


def _pack_fast(codes: Tensor) -> Tensor:
    n, k = codes.shape
    pairs = codes.view(n, k // 32, 4, 4, 2).transpose(2, 3).reshape(n, k)
    rows = _reordered(pairs, _COLUMNS).view(n // 4, 4, k // 64, 64).transpose(1, 2)
    nibbles = rows.reshape(n // 4, k, 4).to(torch.int32)
    shifts = torch.tensor([0, 4, 8, 12], dtype=torch.int32, device=codes.device)
    return (nibbles << shifts).sum(dim=-1).to(torch.int16)


def _fast_zeros(name: str, products: Tensor, scale: Tensor) -> Tensor:
    """Return the zero points whose negative products with ``scale`` [N, groups] are stored.

    Raises:
        LoadError: one is no integer from 0 to 15.
    """
    negative = products.t()[:, : scale.shape[1]].to(torch.float32)
    quotients = torch.where(scale == 0, torch.zeros_like(scale), -negative / scale)
    zeros = quotients.round()
    wrong = ((quotients - zeros).abs() > _LARGEST_ERROR) | (zeros < 0) | (zeros > 15)
    if bool(wrong.any()):
        row, group = (int(i) for i in wrong.nonzero()[0])
        raise LoadError(
            f"{name}.qzeros: {int(wrong.sum())} of {wrong.numel()} products of a zero point and "
            "its scale belong to no zero point from 0 to 15.",
            why=[f"that of output {row} in group {group} is {float(quotients[row, group]):.3f}"],
            todo="The file is damaged, or in another layout than its version says.",
            names=(f"{name}.qzeros",),
        )
    return zeros.to(torch.uint8)


def _pack_fast_zeros(zeros: Tensor, scales: Tensor) -> Tensor:
    products = scales.clone().zero_()
    used = scales[: zeros.shape[1]].to(torch.float32)
    products[: zeros.shape[1]] = (-zeros.t().to(torch.float32) * used).to(scales.dtype)
    return products


PACKINGS: Mapping[str, Packing] = MappingProxyType(
    {
        "gemm": Packing(
            codes=_gemm_codes,
            pack_codes=_pack_gemm,
            scales=Tensor.t,
            pack_scales=lambda grid, size: grid.t().contiguous(),
            zeros=lambda name, words, scale: _gemm_codes(words),
            pack_zeros=lambda zeros, scales: _pack_gemm(zeros),
        ),
        "gemv": Packing(
            codes=_unpack,
            pack_codes=lambda codes: pack_bits(codes, bits=4),
            scales=lambda stored: stored,
            pack_scales=_padded,
            zeros=lambda name, words, scale: _unpack(words),
            pack_zeros=_pack_gemv_zeros,
        ),
        "gemv_fast": Packing(
            codes=_fast_codes,
            pack_codes=_pack_fast,
            scales=Tensor.t,
            pack_scales=lambda grid, size: _padded(grid, size).t().contiguous(),
            zeros=_fast_zeros,
            pack_zeros=_pack_fast_zeros,
        ),
    }
)
