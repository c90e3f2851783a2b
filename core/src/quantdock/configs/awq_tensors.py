"""The tensors of an AWQ weight in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.awq_layouts import LAYOUTS
from quantdock.configs.gptq_tensors import stored_names
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


def awq_slots(
    scheme: Scheme, n: int, k: int, facts: LayerFacts, version: str = "gemm"
) -> tuple[Slot, ...]:
    """Return the slots of one shard [n, k] in the layout called ``version``."""
    return LAYOUTS[version].slots(scheme.weight, n, k, stored_names(facts))


def decode_awq(
    scheme: Scheme,
    stored: Sequence[Mapping[str, Tensor]],
    facts: LayerFacts,
    version: str = "gemm",
) -> CanonicalWeight:
    """Return the canonical weight, one segment a shard; no value changes.

    Raises:
        LoadError: a zero point of a symmetric weight is not the middle of its codes, or a product
            of zero point and scale belongs to no zero point.
    """
    from quantdock.configs.awq_codes import decode

    return decode(scheme.weight, stored, facts, version)
