"""The layout of GPTQ: words down the columns, the group of each column, zero points.

Symmetric checkpoints are written as every reader knows them ("gptq", zero points stored minus
one). Others are written as "gptq_v2", zero points as they are meant: minus one, a zero point of 0
would wrap, and readers disagree about that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_tensors import ZeroStorage, gptq_slots
from quantdock.convert.dialect import Dialect, stored_scale
from quantdock.convert.integers import as_stored, group_misfits, half_precision, packing_misfits
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import CanonicalWeight, torch_dtype
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

METHOD = "gptq"
_INDEX = StoredTensor(dtype="int32", shape=())
_HEAD = "lm_head"  # has a field of its own
_VERSIONS = {False: "gptq", True: "gptq_v2"}  # whether zero points are stored as they are meant


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str], *, v2: bool) -> dict[str, Any]:
    """Return the block: the commonest scheme for all, ``dynamic`` for other and plain layers."""
    ((usual, _),) = Counter(layers.values()).most_common(1)
    others = {
        f"+:{_exactly(prefix)}": _setting(scheme.weight)
        for prefix, scheme in layers.items()
        if scheme != usual
    }
    left: dict[str, Any] = {f"-:{_exactly(name)}": {} for name in plain if name != _HEAD}
    block = {
        "quant_method": METHOD,
        **_setting(usual.weight),
        "checkpoint_format": _VERSIONS[v2],
        "lm_head": _HEAD in layers,
    }
    return block | ({"dynamic": {**left, **others}} if left or others else {})


def _exactly(name: str) -> str:
    """Return the pattern for a module and what lies in it; GPTQ matches from the beginning."""
    return rf"{re.escape(name)}(\.|$)"


def _setting(spec: QuantSpec) -> dict[str, Any]:
    return {
        "bits": ELEMENTS[spec.element].bits,
        "group_size": -1 if spec.cols is None else spec.cols,
        "sym": not spec.zero,
        "desc_act": spec.act_order,
    }


def _describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
    facts = LayerFacts(prefix="", stored={"g_idx": _INDEX})
    return as_stored(gptq_slots(scheme, n, k, facts), scale_dtype)


def _encode(
    scheme: Scheme, weight: CanonicalWeight, scale_dtype: str, *, v2: bool
) -> dict[str, Tensor]:
    from quantdock.configs.gptq_codes import encode_gptq

    (segment,) = weight.segments
    stored_scale(segment.scale, scale_dtype)
    return encode_gptq(weight, ZeroStorage(v2=v2), torch_dtype(scale_dtype))


def _misfits(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    yield from group_misfits(scheme.weight, k)
    yield from packing_misfits(scheme.weight, N=n, K=k)


def _version(layers: Mapping[str, Scheme]) -> Dialect:
    return GPTQ_V2 if any(scheme.weight.zero for scheme in layers.values()) else GPTQ


GPTQ = Dialect(
    name=METHOD,
    reader=GPTQConfig,
    make_block=partial(_make_block, v2=False),
    describe=_describe,
    encode=partial(_encode, v2=False),
    scale_dtype=half_precision,
    misfits=_misfits,
    version=_version,
)
GPTQ_V2 = replace(GPTQ, make_block=partial(_make_block, v2=True), encode=partial(_encode, v2=True))
