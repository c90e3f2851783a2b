"""Second scales that multiply, before they become divisors."""

from __future__ import annotations

import pytest
import torch

from quantdock.convert.conversion import plan_conversion
from quantdock.errors import MismatchError
from toy_files import edit_tensors
from toy_llama import DOWN


def test_scales_that_are_no_reciprocals_are_found_out_before_anything_is_written(plain, tmp_path):
    source = plan_conversion(plain, tmp_path / "in", "modelopt").run().target

    def round_all(tensors):
        seconds = {n: t for n, t in tensors.items() if n.endswith("weight_scale_2")}
        tensors.update({n: torch.full_like(t, 2.0**-12) for n, t in seconds.items()})

    edit_tensors(source, round_all)
    plan_conversion(source, tmp_path / "out", "compressed-tensors")
    name = f"{DOWN}.weight_scale_2"
    edit_tensors(source, lambda t: t.update({name: torch.tensor(1.999999880790711)}))
    with pytest.raises(MismatchError) as caught:
        plan_conversion(source, tmp_path / "out", "compressed-tensors")
    assert caught.value.what.startswith(f"{name} has no place in compressed-tensors: A second")
    assert "--to nvfp4 rounds it" in caught.value.todo
    assert not list(tmp_path.glob("out*"))
