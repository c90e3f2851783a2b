"""The error for a checkpoint whose method is supported, and its kind of that method not yet."""

from __future__ import annotations

from typing import NoReturn

from quantdock.errors import MethodNotYetError

QUANTIZE_AT_LOAD = (
    "Load the 16-bit original of this model and quantize it at load: "
    "quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
)


def kind_to_come(method: str, *why: str, todo: str = QUANTIZE_AT_LOAD) -> NoReturn:
    """Raise the error; ``why`` begins with where in the block the kind is named.

    Raises:
        MethodNotYetError: always.
    """
    raise MethodNotYetError(
        f"This {method} checkpoint is of a kind that is known and not supported yet.",
        why=why,
        todo=todo,
        asked=method,
        method=method,
        runnable=(),
        elsewhere=(),
    )
