"""What may be converted to what: quantized input, silent input, nothing to decode."""

from __future__ import annotations

import pytest

from quantdock.convert.conversion import plan_conversion
from quantdock.errors import LoadError, MismatchError
from toy_llama import BLOCK, LINEARS, llama, write


def test_a_quantized_input_is_refused_with_advice(tmp_path):
    folder = write(tmp_path / "block", llama("128x128"), BLOCK)
    with pytest.raises(MismatchError, match="is quantized already") as caught:
        plan_conversion(folder, tmp_path / "out", "mxfp4")
    assert "config.json: quantization_config says fp8" in str(caught.value)
    assert "--to none" in caught.value.todo and "move its codes" in caught.value.todo


def test_rounding_is_said_to_use_no_data(plain, tmp_path):
    planned = plan_conversion(plain, tmp_path / "out", "gptq")
    assert planned.work.notes[-2:] == (
        "written as gptq",
        "integers are rounded to nearest: no data was used, nothing is calibrated",
    )


def test_codes_without_a_block_are_no_16_bit_checkpoint(tmp_path):
    folder = write(tmp_path / "silent", llama("128x128"))
    for to in ("mxfp8", "none"):
        with pytest.raises(LoadError, match="nothing says how it is quantized"):
            plan_conversion(folder, tmp_path / "out", to)


def test_a_plain_input_has_nothing_to_decode(plain, tmp_path):
    with pytest.raises(MismatchError, match="is not quantized, so there is nothing to decode"):
        plan_conversion(plain, tmp_path / "out", "none")


def test_a_plan_reads_headers_and_writes_nothing(plain, tmp_path):
    planned = plan_conversion(plain, tmp_path / "out", "fp8_per_block")
    assert planned.work.num_layers == len(LINEARS)
    assert planned.work.notes[-1] == "written as transformers' fine-grained fp8"
    assert planned.num_bytes == sum(t.nbytes for t in llama().values())
    assert list(tmp_path.iterdir()) == [plain]
