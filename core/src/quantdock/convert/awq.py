"""The layout of AWQ: its "gemm" version, words along the rows, zero points always."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from quantdock.configs.awq import AWQConfig
from quantdock.configs.awq_layouts import LAYOUTS
from quantdock.convert.dialect import Dialect, stored_scale
from quantdock.convert.integers import as_stored, group_misfits, half_precision, packing_misfits
from quantdock.formats import ELEMENTS
from quantdock.numerics import CanonicalWeight, torch_dtype
from quantdock.schemes import Scheme, StoredTensor

METHOD = "awq"
_VERSION = "gemm"


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    spec = next(iter(layers.values())).weight
    return {
        "quant_method": METHOD,
        "version": _VERSION,
        "bits": ELEMENTS[spec.element].bits,
        "group_size": -1 if spec.cols is None else spec.cols,
        "zero_point": True,
        "modules_to_not_convert": list(plain),
    }


def _respell(scheme: Scheme) -> Scheme:
    """Return the scheme with zero points; those of a symmetric weight are all in the middle."""
    spec = scheme.weight
    if spec.zero or ELEMENTS[spec.element].is_float:
        return scheme
    bits = ELEMENTS[spec.element].bits
    return replace(scheme, weight=replace(spec, element=f"uint{bits}", zero=True))


def _describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
    return as_stored(LAYOUTS[_VERSION].slots(scheme.weight, n, k, None), scale_dtype)


def _encode(scheme: Scheme, weight: CanonicalWeight, scale_dtype: str) -> dict[str, Tensor]:
    from quantdock.configs.awq_codes import encode_awq

    (segment,) = weight.segments
    stored_scale(segment.scale, scale_dtype)
    return encode_awq(weight, _VERSION, torch_dtype(scale_dtype))


def _misfits(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    yield from group_misfits(scheme.weight, k)
    yield from packing_misfits(scheme.weight, N=n)


AWQ = Dialect(
    name=METHOD,
    reader=AWQConfig,
    make_block=_make_block,
    describe=_describe,
    encode=_encode,
    scale_dtype=half_precision,
    misfits=_misfits,
    respell=_respell,
)
