"""The example of docs/tensor-parallel.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tensor-parallel.md"


def test_ranks_made_by_hand_give_the_product():
    *_, example = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    assert "total" in names
