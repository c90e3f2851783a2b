"""Libraries of others as ways: asked for what they take, in their words, and imported late."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest
import torch

from quantdock_cuda import libraries, library
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import DEEP_GEMM, FLASHINFER, LIBRARY
from quantdock_cuda.tiling import BLOCK
from quantdock_triton.tile import Form, Tile


def layer(arch="sm_90", form=BLOCK, n=256, k=512, **more):
    given = {"scales": (False, False), "dtype": torch.bfloat16, "bias_dtype": None, **more}
    return library.Layer(form=form, features=describe(arch).features, n=n, k=k, **given)


def spread(scale, rows, columns):
    return scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


class Calls:
    """Stands for both libraries: records how it is called, and computes with torch."""

    def __init__(self):
        self.calls = []

    def product(self, x, x_scale, weight, weight_scale):
        real = x.float() * spread(x_scale, 1, 128)
        return (real @ (weight.float() * spread(weight_scale, 128, 128)).T).bfloat16()

    def fp8_gemm_nt(self, a, b, d):
        self.calls.append(("fp8_gemm_nt", a, b))
        d.copy_(self.product(*a, *b))

    def fp8_blockscale_gemm_sm90(self, x, weight, x_scale, weight_scale, *, out_dtype):
        self.calls.append(("fp8_blockscale_gemm_sm90", (x, x_scale), (weight, weight_scale)))
        return self.product(x, x_scale, weight, weight_scale).to(out_dtype)


@pytest.fixture(autouse=True)
def forget():
    """Ask anew what is installed, before and after."""
    clear()
    yield
    clear()


def clear():
    libraries.is_installed.cache_clear()
    libraries.load.cache_clear()
    libraries._left.clear()


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Install modules that record their calls."""
    for name in ("deep_gemm", "flashinfer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = Calls()

    def imported(name):
        module = ModuleType(name)
        module.fp8_gemm_nt = calls.fp8_gemm_nt
        module.fp8_blockscale_gemm_sm90 = calls.fp8_blockscale_gemm_sm90
        return module

    monkeypatch.setattr("quantdock_cuda.block_libraries.import_module", imported)
    return calls


@pytest.mark.parametrize("m", [1, 6, 64])
@pytest.mark.parametrize("name", [DEEP_GEMM, FLASHINFER])
def test_they_are_called_with_what_we_have_and_nothing_is_copied(calls, name, m):
    rows = -(-m // 4) * 4
    # Sums of these are exact, so that their order, which depends on the rows, is none's concern.
    x, weight = (torch.randint(-8, 9, (r, 512)).to(torch.float8_e4m3fn) for r in (rows, 256))
    x_scale, weight_scale = (2.0 ** torch.randint(-2, 3, size) for size in ((4, rows), (2, 4)))
    x_scale = x_scale.t()
    product = libraries.product_for(name, layer())
    found = product(x, x_scale, weight, weight_scale, None, m, torch.bfloat16)
    expected = calls.product(x, x_scale, weight, weight_scale)[:m]
    assert torch.equal(found, expected) and found.shape == (m, 256)
    [(_, (given, given_scale), (other, other_scale))] = calls.calls
    assert given.shape == (m, 512) and given.data_ptr() == x.data_ptr()
    assert given_scale.shape == (m, 4) and given_scale.data_ptr() == x_scale.data_ptr()
    # The layout that both read as it is: rows side by side, a multiple of 16 bytes from a group
    # to the next.
    assert given_scale.stride() == (1, rows) and rows % 4 == 0
    assert other.data_ptr() == weight.data_ptr() and other.is_contiguous()
    assert other_scale.data_ptr() == weight_scale.data_ptr() and other_scale.is_contiguous()


@pytest.mark.parametrize(
    "other",
    [
        {"form": Form()},
        {"form": Form(x_cols=128, weight_cols=128, weight_rows=64)},
        {"arch": "sm_100"},
        {"arch": "sm_89"},
        {"dtype": torch.float16},
        {"bias_dtype": torch.bfloat16},
        {"n": 32},
        {"k": 320},
    ],
)
def test_other_operands_are_not_for_them(calls, other):
    for name in (DEEP_GEMM, FLASHINFER):
        assert libraries.product_for(name, layer()) is not None
        assert libraries.product_for(name, layer(**other)) is None


def test_they_are_not_there_unless_installed():
    for name in (DEEP_GEMM, FLASHINFER):
        assert not libraries.is_installed(name)
        assert libraries.product_for(name, layer()) is None
        assert libraries.LIBRARIES[name].module not in sys.modules


def test_asking_whether_one_is_installed_does_not_import_it(tmp_path, monkeypatch):
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm" / "__init__.py").write_text("raise OSError('no libcuda')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert libraries.is_installed(DEEP_GEMM) and "deep_gemm" not in sys.modules
    assert libraries.product_for(DEEP_GEMM, layer(form=Form())) is None


def test_one_that_cannot_be_imported_is_told_once_and_left(tmp_path, monkeypatch, caplog):
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm" / "__init__.py").write_text("raise OSError('no libcuda')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        assert libraries.product_for(DEEP_GEMM, layer()) is None
        assert libraries.product_for(DEEP_GEMM, layer()) is None
    assert [r.getMessage() for r in caplog.records] == [
        "deep_gemm is not used: OSError: no libcuda"
    ]


def test_one_that_fails_when_called_is_told_once_and_the_next_way_is_taken(
    tmp_path, monkeypatch, caplog
):
    from quantdock_cuda import execution, tiling

    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm" / "__init__.py").write_text(
        "def fp8_gemm_nt(*operands):\n    raise RuntimeError('no nvcc')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    hopper = Device(
        arch="sm_90",
        name="NVIDIA H200",
        features=describe("sm_90").features,
        num_sms=132,
        shared_bytes=227 << 10,
    )
    monkeypatch.setattr(execution, "device_of", lambda index: hopper)
    monkeypatch.setattr(tiling, "ways", lambda *facts: (DEEP_GEMM, Tile(m=64, n=64, k=128)))
    text, result = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic", torch.ones(4, 256)
    layers = [
        execution.Execution(text, 256, 512, 2, 0, torch.bfloat16, None, number) for number in (0, 1)
    ]
    monkeypatch.setattr(execution.Execution, "_tiled", lambda self, tile: lambda *given: result)
    given = (torch.zeros(4, 512), torch.ones(4, 4), torch.zeros(256, 512), torch.ones(2, 4), None)
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        products = [made._choose(4) for made in layers]
        assert all(product(*given, 4) is result for product in products)
        assert layers[0].multiply(*given, 4) is result
    assert [r.getMessage() for r in caplog.records] == [
        "deep_gemm is not used: RuntimeError: no nvcc"
    ]
    sys.modules.pop("deep_gemm")


@pytest.mark.parametrize("name", [DEEP_GEMM, FLASHINFER])
def test_no_record_holds_a_call_that_launches_past_torch(calls, name):
    from quantdock_triton.recording import Recorder

    operands = (torch.zeros(4, 512), torch.ones(4, 4), torch.zeros(256, 512), torch.ones(2, 4))
    product = libraries.product_for(name, layer())
    with Recorder(operands) as recorder:
        result = product(*operands, None, 4, torch.bfloat16)
    assert recorder.tape(result) is None and not recorder._is_whole


def test_one_of_another_version_lacks_the_function(tmp_path, monkeypatch, caplog):
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("")
    (tmp_path / "flashinfer" / "gemm.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        assert libraries.product_for(FLASHINFER, layer()) is None
    assert "fp8_blockscale_gemm_sm90" in caplog.text
    for name in ("flashinfer", "flashinfer.gemm"):
        sys.modules.pop(name)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_torch_takes_one_scale_and_rows_everywhere_and_blocks_on_hopper(arch):
    one, rows = (True, True), (False, False)
    assert library.takes(layer(arch, Form(), scales=one))
    assert library.takes(layer(arch, Form(), scales=one, dtype=torch.float16))
    assert library.takes(layer(arch, Form(), scales=rows))
    assert not library.takes(layer(arch, Form(), scales=rows, dtype=torch.float16))
    assert not library.takes(layer(arch, Form(), scales=(True, False)))
    assert not library.takes(layer(arch, Form(), n=250))
    assert library.takes(layer(arch)) is (arch == "sm_90")
    assert library.takes(layer(arch, n=2112)) is (arch == "sm_90")  # no whole number of blocks
    assert not library.takes(layer(arch, k=640))
    assert libraries.product_for(LIBRARY, layer(arch, Form(element="int8"))) is None
