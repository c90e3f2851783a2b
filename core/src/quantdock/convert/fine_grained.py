"""The layout of DeepSeek-V3 and of transformers' fine-grained fp8: one tile for all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantdock.configs.fp8 import Fp8Config
from quantdock.convert.dialect import Dialect, as_spec_says, dense_form
from quantdock.schemes import Scheme

_WORDS = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    spec = next(iter(layers.values())).weight
    block: dict[str, Any] = {
        "quant_method": "fp8",
        "fmt": _WORDS.get(spec.element, spec.element),
        "activation_scheme": "dynamic",
        "weight_block_size": None if spec.granularity != "block" else [spec.rows, spec.cols],
        "modules_to_not_convert": list(plain),
    }
    return block | ({"scale_fmt": "ue8m0"} if spec.rounding == "ceil" else {})


_DESCRIBE, _ENCODE = dense_form("weight_scale_inv")
FINE_GRAINED = Dialect(
    name="transformers' fine-grained fp8",
    reader=Fp8Config,
    make_block=_make_block,
    describe=_DESCRIBE,
    encode=_ENCODE,
    scale_dtype=as_spec_says,
)
