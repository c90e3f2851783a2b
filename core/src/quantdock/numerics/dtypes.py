"""Torch dtypes by the names that the torch-free parts use."""

from __future__ import annotations

import torch

from quantdock.errors import FormatError
from quantdock.formats import DTYPES


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``, such as "float8_e4m3fn".

    Raises:
        FormatError: no storage dtype has that name, or this torch lacks it.
    """
    dtype = getattr(torch, name, None) if name in DTYPES else None
    if not isinstance(dtype, torch.dtype):
        raise FormatError(
            f"No dtype is called {name!r}.",
            why=[
                f"torch {torch.__version__} lacks it"
                if name in DTYPES
                else f"known: {', '.join(DTYPES)}"
            ],
            todo="Use torch's name without 'torch.', or a newer torch.",
        )
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of ``dtype`` without "torch."."""
    return str(dtype).removeprefix("torch.")
