"""The layout of w8a8_int8: int8 weights by rows, inputs quantized a token at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantdock.configs.w8a8_int8 import W8A8Int8Config
from quantdock.convert.dialect import Dialect, as_spec_says, dense_form
from quantdock.schemes import Scheme

METHOD = "w8a8_int8"


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    return {"quant_method": METHOD, "is_dynamic": True, "ignore": list(plain)}


_DESCRIBE, _ENCODE = dense_form("weight_scale")
W8A8_INT8 = Dialect(
    name=METHOD,
    reader=W8A8Int8Config,
    make_block=_make_block,
    describe=_DESCRIBE,
    encode=_ENCODE,
    scale_dtype=as_spec_says,
)
