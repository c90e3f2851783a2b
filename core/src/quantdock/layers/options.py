"""The options that every parallel linear layer hands on to LinearBase."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

    from quantdock.method import MethodSource
    from quantdock.schemes import LayerFacts


class LinearOptions(TypedDict, total=False):
    """See LinearBase."""

    params_dtype: torch.dtype | None
    quant_config: MethodSource | None
    prefix: str
    facts: LayerFacts | None
