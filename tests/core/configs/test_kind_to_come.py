"""The error for kinds of checkpoint that are to come: three parts, and the facts."""

from __future__ import annotations

import pytest

from quantdock.configs.kind_to_come import kind_to_come
from quantdock.errors import MethodNotYetError


def test_it_says_what_why_and_what_to_do() -> None:
    with pytest.raises(MethodNotYetError) as caught:
        kind_to_come("modelopt", "quant_algo is 'X'", "supported: Y")
    assert str(caught.value) == (
        "This modelopt checkpoint is of a kind that is known and not supported yet.\n"
        "  quant_algo is 'X'\n"
        "  supported: Y\n"
        "Load the 16-bit original of this model and quantize it at load: "
        "quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
    )
    assert (caught.value.asked, caught.value.method) == ("modelopt", "modelopt")
