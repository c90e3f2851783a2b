"""Which dtype a model computes in: the user's word, the checkpoint's, the platform's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantdock.errors import ConfigError
from quantdock.numerics.dtypes import torch_dtype
from quantdock.plan.setting import choose_dtype
from quantdock.platform import Platform

_SHORT = {
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
}


def choose_torch_dtype(
    asked: str | torch.dtype, raw_config: Mapping[str, Any], platform: Platform
) -> torch.dtype:
    """Return the dtype of activations and unquantized weights; "auto": see ``choose_dtype``.

    Raises:
        ConfigError: the asked dtype is none, or the platform does not compute in it.
    """
    word = str(asked).removeprefix("torch.").lower()
    word = _SHORT.get(word, word)
    if word == "auto":
        return torch_dtype(choose_dtype(raw_config, platform))
    if word not in platform.dtypes:
        raise ConfigError(
            f"dtype={asked!s} cannot be used on {platform}.",
            why=[f"it computes in {', '.join(platform.dtypes)}"],
            todo="Choose one of these, or leave dtype='auto'.",
        )
    return torch_dtype(word)
