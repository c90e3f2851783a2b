from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import save

from quantdock.formats.dtypes import BY_HEADER, DTYPES

SAVED = [name for name in DTYPES if name != "float4_e2m1fn_x2"]


@pytest.mark.parametrize("name", SAVED)
def test_header_names_are_those_of_safetensors(name):
    saved = save({"t": torch.zeros(4, dtype=torch.uint8).to(getattr(torch, name))})
    (length,) = struct.unpack("<Q", saved[:8])
    header = json.loads(saved[8 : 8 + length])
    assert header["t"]["dtype"] == DTYPES[name].header
    start, end = header["t"]["data_offsets"]
    assert (end - start) * 8 == 4 * DTYPES[name].bits


def test_every_header_name_is_one_dtype():
    assert {dtype.name for dtype in BY_HEADER.values()} == set(DTYPES)


def test_only_plain_floats_may_be_cast():
    floating = [name for name, dtype in DTYPES.items() if dtype.floating]
    assert floating == ["float64", "float32", "float16", "bfloat16"]
