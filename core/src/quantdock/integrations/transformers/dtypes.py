"""Which dtype a model computes in: the user's word, the checkpoint's, the platform's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantdock.numerics.dtypes import torch_dtype
from quantdock.plan.setting import choose_dtype
from quantdock.platform import Platform


def choose_torch_dtype(
    asked: str | torch.dtype, raw_config: Mapping[str, Any], platform: Platform
) -> torch.dtype:
    """Return the dtype of activations and unquantized weights; see ``choose_dtype``.

    Raises:
        ConfigError: the platform does not compute in what is asked.
    """
    return torch_dtype(choose_dtype(raw_config, platform, str(asked)))
