from __future__ import annotations

import pytest

from quantdock.errors import FormatError
from quantdock.formats import DTYPES
from quantdock.numerics import dtype_name, torch_dtype


@pytest.mark.parametrize("name", DTYPES)
def test_every_storage_dtype_exists_and_has_its_width(name):
    dtype = torch_dtype(name)
    assert dtype_name(dtype) == name
    if name != "float4_e2m1fn_x2":  # two codes a byte
        assert dtype.itemsize * 8 == DTYPES[name].bits


@pytest.mark.parametrize("name", ["float8", "nn", "torch.int8", ""])
def test_another_name_is_refused(name):
    with pytest.raises(FormatError, match=rf"No dtype is called '{name}'[\s\S]*known: float64"):
        torch_dtype(name)
