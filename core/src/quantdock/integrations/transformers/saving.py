"""Saving a loaded model: refused with the way out, where it would write something wrong."""

from __future__ import annotations

from typing import Any, NoReturn

from quantdock.errors import SaveError


def refuse_saving(model: Any, source: str) -> None:
    """Make ``model.save_pretrained`` an error: its weights lie in kernel layouts.

    transformers would write codes without the block that says how to read them.
    """

    def save_pretrained(*args: Any, **kwargs: Any) -> NoReturn:
        raise SaveError(
            "A model with quantized layers cannot be saved with save_pretrained.",
            why=["its weights are in the layouts of the kernels that run them"],
            todo=f"Copy the checkpoint it was loaded from ({source}), or load it with "
            "quantization='none' and save that.",
        )

    model.save_pretrained = save_pretrained
