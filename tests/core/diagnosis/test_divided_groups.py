"""Check 5 tells what becomes of layers in act-order whose input features ranks divide."""

from __future__ import annotations

import pytest
import torch

import toy_llama as toy
from examined import noted, statuses, told
from quantdock import Kernel, Platform, PlatformEntry, SchemeSet, SpecSet, doctor
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.testing import make_plugin, use_plugins
from toy_gptq import GPTQ, in_act_order

BLOCK = {**GPTQ, "group_size": 64, "sym": False, "desc_act": True}
WHY = "sorts columns by group, and groups are of unequal size"
NAMES = (toy.DOWN, toy.UP)


def described(arch):
    return Platform(name="acme", arch=arch, device="meta")


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes the toy with two layers in act-order, or in a row."""

    def make(permuted=True):
        tensors = toy.llama()
        for name in NAMES:
            n, k = tensors.pop(f"{name}.weight").shape
            parts = encode_gptq(in_act_order(n, k, 64))
            if not permuted:
                parts["g_idx"] = torch.arange(k, dtype=torch.int32) // 64
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
        return toy.write(tmp_path / f"toy{permuted}", tensors, BLOCK)

    return make


def examine(folder, platform="cpu:avx2", tp=2, quick=True):
    return doctor(folder, platform=platform, dtype="bfloat16", tp=tp, quick=quick)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("quick", [True, False])
def test_another_kernel_is_noted(folder, tp, quick):
    report = examine(folder(), tp=tp, quick=quick)
    assert statuses(report)["shapes"] == "pass"
    text = noted(report, "shapes")
    assert f"{toy.DOWN}: among {tp} ranks, reference runs them\nint4_pack: {WHY}" in text
    assert toy.UP not in text, "its output is divided"
    assert "among" not in noted(examine(folder(), tp=1), "shapes")


def test_what_the_files_show_decides_where_they_are_read(folder):
    path = folder(permuted=False)
    assert "reference runs them" in noted(examine(path), "shapes")
    assert "reference runs them" not in noted(examine(path, quick=False), "shapes")


def test_no_kernel_is_a_fault(folder):
    kernel = Kernel(
        name="acme_sorted",
        target="acme:Sorted",
        accepts=SchemeSet(weight=SpecSet(act_order=None)),
        sorts_columns=True,
    )
    entry = PlatformEntry(
        name="acme", rank=5, probe="acme:probe", describe=f"{__name__}:described", archs=("a1",)
    )
    plugin = make_plugin(
        "acme_sorts",
        get_platforms=lambda: (entry,),
        get_kernels=lambda platform: (kernel,) if platform.name == "acme" else (),
    )
    with use_plugins(plugin):
        report = examine(folder(), "acme:a1")
        assert statuses(report)["shapes"] == "fail"
        assert statuses(report)["kernels"] == "pass", "the whole layer has one"
        text = told(report, "shapes")
        assert f"{toy.DOWN}: among 2 ranks, no kernel runs uint4[1x64]:zero:act-order" in text
        assert f"acme_sorted: {WHY}" in text
        assert "A checkpoint without act-order (desc_act) can be divided." in text
