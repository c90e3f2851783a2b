"""The example on the page about quantized inputs runs, and equals the functions apart."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quantized-inputs.md"


def test_the_example_equals_the_functions_apart():
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    exec(code, names)
    x, residual = torch.randn(5, 64), torch.randn(5, 64)
    found, total = names["mlp"](x, residual)
    assert torch.equal(total, x + residual)
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    gate, up = names["gate_up"](normed).chunk(2, dim=-1)
    assert torch.equal(found, names["down"](F.silu(gate) * up))
