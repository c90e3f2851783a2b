"""The layout of ModelOpt: an algorithm for all layers, or one for each; second scales multiply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantdock.configs.modelopt import ModelOptConfig
from quantdock.configs.modelopt_layers import ALGORITHMS, METHOD, ModelOptFp4
from quantdock.convert.dialect import Dialect, as_spec_says
from quantdock.convert.packed_form import float_form, packed_misfits
from quantdock.schemes import Scheme

# Algorithms by what they stand for; those that may multiply an input are not written.
_WORDS = {
    algorithm.scheme: word for word, algorithm in ALGORITHMS.items() if not algorithm.may_multiply
}


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    words = {prefix: _setting(scheme) for prefix, scheme in layers.items()}
    (first, *others) = words.values()
    block: dict[str, Any] = {"quant_method": METHOD, "producer": {"name": "quantdock"}}
    if all(other == first for other in others):
        return {**block, **first, "ignore": list(plain)}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": words}
    return {**block, **mixed, "ignore": list(plain)}


def _setting(scheme: Scheme) -> dict[str, Any]:
    size = scheme.weight.cols if scheme.weight.granularity == "group" else None
    said = {"quant_algo": _WORDS[scheme]}
    return said | ({"group_size": size} if size else {})


_DESCRIBE, _ENCODE = float_form(ModelOptFp4.codes, ModelOptFp4.names, ())


def _strangers(layers: Mapping[str, Scheme]) -> Iterator[str]:
    for scheme in dict.fromkeys(layers.values()):
        if scheme not in _WORDS:
            yield f"{METHOD} has no words for {scheme}; it has for {', '.join(_WORDS.values())}"


MODELOPT = Dialect(
    name=METHOD,
    reader=ModelOptConfig,
    make_block=_make_block,
    describe=_DESCRIBE,
    encode=_ENCODE,
    scale_dtype=as_spec_says,
    misfits=packed_misfits,
    strangers=_strangers,
)
