"""A toy checkpoint in 128x128 blocks, changed as a test says, and examined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import toy_llama as toy
from quantdock.diagnosis import Report, doctor

torch.set_num_threads(1)

Edit = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture
def examine(tmp_path: Path) -> Callable[..., Report]:
    """Return a function that writes the toy, edited, and returns the report on it.

    ``examine(edit, block, tile="128x128", fields={}, **options of doctor)``
    """

    def make(
        edit: Edit | None = None,
        block: Any = toy.BLOCK,
        *,
        tile: str | None = "128x128",
        fields: dict[str, Any] | None = None,
        **options: Any,
    ) -> Report:
        tensors = toy.llama(tile)
        if edit is not None:
            edit(tensors)
        folder = toy.write(tmp_path / "toy", tensors, block, **(fields or {}))
        return doctor(folder, **{"platform": "cpu", "dtype": "float32", **options})

    return make
