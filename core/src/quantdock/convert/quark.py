"""The layout of Quark for OCP MX floats: its words for a tensor, names for other layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantdock.configs.quark import QuarkConfig
from quantdock.configs.quark_spec import METHOD, MX_WORDS
from quantdock.configs.quark_tensors import QuarkPackedFloats
from quantdock.convert.dialect import Dialect, as_spec_says
from quantdock.convert.packed_form import float_form, packed_misfits
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.schemes import Scheme

_DTYPES = {element: word for word, element in MX_WORDS.items()}


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    ((usual, _),) = Counter(layers.values()).most_common(1)
    others = {name: _layer(scheme) for name, scheme in layers.items() if scheme != usual}
    return {
        "quant_method": METHOD,
        "quant_mode": "eager_mode",
        "export": {"weight_format": "real_quantized", "pack_method": "reorder"},
        "global_quant_config": _layer(usual),
        "layer_quant_config": others,
        "layer_type_quant_config": {},
        "exclude": list(plain),
    }


def _layer(scheme: Scheme) -> dict[str, Any]:
    activation = scheme.activation
    return {
        "weight": _tensor(scheme.weight),
        "input_tensors": None if activation is None else _tensor(activation),
        "output_tensors": None,
        "bias": None,
    }


def _tensor(spec: QuantSpec) -> dict[str, Any]:
    return {
        "dtype": _DTYPES.get(spec.element, spec.element),
        "qscheme": "per_group",
        "ch_axis": -1,
        "group_size": spec.cols,
        "is_dynamic": spec.dynamic,
        "symmetric": None,
        "scale_format": spec.scale,
        "scale_calculation_mode": spec.rounding,
        "round_method": "half_even",
    }


_DESCRIBE, _ENCODE = float_form(QuarkPackedFloats.codes, QuarkPackedFloats.names, ())


def _is_micro(spec: QuantSpec) -> bool:
    has_word = spec.element in _DTYPES or ELEMENTS[spec.element].bits == 8
    return has_word and ELEMENTS[spec.element].is_float and spec.scale == "e8m0"


def _strangers(layers: Mapping[str, Scheme]) -> Iterator[str]:
    for scheme in dict.fromkeys(layers.values()):
        if not all(_is_micro(spec) for spec in (scheme.weight, scheme.activation) if spec):
            yield (
                f"{METHOD} has no words for {scheme}; it has for fp4, fp6 and fp8 in groups of 32 "
                "with powers of two, as it is written here"
            )


QUARK = Dialect(
    name=METHOD,
    reader=QuarkConfig,
    make_block=_make_block,
    describe=_DESCRIBE,
    encode=_ENCODE,
    scale_dtype=as_spec_says,
    misfits=packed_misfits,
    strangers=_strangers,
)
