"""Weight-only 4 bits through torch's own kernel, and the cases that it must not get."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from integer_weights import assert_same, layer_of, make_integers
from quantdock.errors import FormatError
from quantdock.kernels import int4_pack as module
from quantdock.kernels.int4_blocks import block_height
from quantdock.kernels.int4_pack import AFFINE, BLOCKS, Int4Pack, agrees_with_definition

TILES = ("1x*", "1x32", "1x64", "1x128", "1x256", "1x96", "1x512")


def test_torchs_kernel_is_right_here() -> None:
    assert agrees_with_definition() is True


@settings(max_examples=60, deadline=None)
@given(
    element=st.sampled_from(["int4", "int3", "uint4", "uint3"]),
    tile=st.sampled_from(TILES),
    marks=st.sampled_from(["", ":zero", ":act-order", ":zero:act-order"]),
    multiplier=st.sampled_from(["", " + input multiplier"]),
    sizes=st.lists(st.sampled_from([16, 48, 64, 80]), min_size=1, max_size=3),
    blocks=st.integers(1, 9),
    m=st.sampled_from([0, 1, 3, 33]),
    seed=st.integers(0, 99),
)
def test_it_agrees_with_the_weight_in_f64(
    element: str,
    tile: str,
    marks: str,
    multiplier: str,
    sizes: list[int],
    blocks: int,
    m: int,
    seed: int,
) -> None:
    """Tolerance: every scale and shift is rounded to bfloat16, and so is the result."""
    marks = "" if tile == "1x*" and "act" in marks else marks
    scheme, k = f"{element}[{tile}]{marks}{multiplier}", 32 * blocks
    weight = make_integers(scheme, sizes, k, seed=seed)
    kernel, tensors = layer_of(scheme, weight, Int4Pack)
    assert_same(weight, kernel.restore(tensors))
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).bfloat16()
    bias = torch.linspace(-5, 5, sum(sizes))
    result = kernel.apply(tensors, x, bias)
    real = weight.dequantize().double()
    rows = x.double() if weight.input_multiplier is None else x.double() * weight.input_multiplier
    expected = rows @ real.T + bias.double()
    assert result.dtype == torch.bfloat16
    assert result.shape == expected.shape
    scales = torch.cat([s.scale.abs().amax(1) for s in weight.segments]).double()
    reach = real.abs() + 16 * scales[:, None]
    allowed = 2.0**-7 * expected.abs() + 2.0**-8 * (rows.abs() @ reach.T)
    assert bool(((result.double() - expected).abs() <= allowed + 2.0**-8).all())


def test_the_promise_holds_for_usual_weights() -> None:
    for scheme in ("int4[1x128]", "uint4[1x128]:zero"):
        weight = make_integers(scheme, [256], 512, seed=3)
        kernel, tensors = layer_of(scheme, weight, Int4Pack)
        assert BLOCKS in tensors
        x = torch.randn(5, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
        expected = x.double() @ weight.dequantize().double().T
        error = (kernel.apply(tensors, x, None).double() - expected).norm()
        assert float(error) <= 2.0**-7 * float(expected.norm())


def test_what_lies_in_memory() -> None:
    weight = make_integers("uint4[1x128]:zero", [64], 256)
    _, tensors = layer_of("uint4[1x128]:zero", weight, Int4Pack)
    sizes = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    assert sizes == {
        BLOCKS: (torch.uint8, (64, 128)),
        AFFINE: (torch.bfloat16, (2, 64, 2)),
        "weight_scale": (torch.float32, (64, 2)),
        "weight_zero": (torch.int8, (64, 2)),
    }


@pytest.mark.parametrize(
    ("scheme", "sizes", "k", "options"),
    [
        ("int4[1x32]:act-order", [32], 128, {"equal": False}),
        ("int4[1x32]:act-order", [32, 16], 128, {"shared": False}),
        ("int4[1x48]", [32], 96, {}),
        ("int4[1x32]", [24], 64, {}),
    ],
)
def test_what_torchs_kernel_cannot_lay_out_goes_to_the_reference(
    scheme: str, sizes: list[int], k: int, options: dict[str, bool]
) -> None:
    weight = make_integers(scheme, sizes, k, **options)
    kernel, tensors = layer_of(scheme, weight, Int4Pack)
    assert BLOCKS not in tensors
    assert_same(weight, kernel.restore(tensors))
    x = torch.randn(3, k, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ weight.dequantize().double().T
    assert torch.allclose(kernel.apply(tensors, x, None).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_processor_that_fails_the_test_gets_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "agrees_with_definition", lambda: False)
    _, tensors = layer_of("int4[1x32]", make_integers("int4[1x32]", [32], 64), Int4Pack)
    assert sorted(tensors) == ["weight", "weight_scale"]


@pytest.mark.parametrize("scheme", ["int4[1x32]", "uint4[1x32]:zero:act-order + input multiplier"])
def test_other_dtypes_and_partial_sums_are_those_of_the_reference(scheme: str) -> None:
    weight = make_integers(scheme, [32, 48], 128)
    kernel, tensors = layer_of(scheme, weight, Int4Pack)
    reference, plain = layer_of(scheme, weight)
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    assert BLOCKS in tensors
    assert torch.equal(kernel.apply(tensors, x, None), reference.apply(plain, x, None))
    half = x.bfloat16()
    partial = kernel.apply_partial(tensors, half)
    assert torch.equal(partial, reference.apply_partial(plain, half))


def test_many_rows_go_to_the_reference_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    height = block_height()
    assert height is not None
    weight = make_integers("uint4[1x32]:zero", [32, 48], 128)
    kernel, tensors = layer_of("uint4[1x32]:zero", weight, Int4Pack)
    reference, plain = layer_of("uint4[1x32]:zero", weight)
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = reference.apply(plain, x, None)
    assert not torch.equal(kernel.apply(tensors, x, None), expected)
    monkeypatch.setitem(module.MOST_ROWS, height, 8)
    assert torch.equal(kernel.apply(tensors, x, None), expected)


@pytest.mark.parametrize("shape", [(128,), (1, 7, 128), (2, 3, 5, 128), (2, 0, 128)])
def test_leading_dimensions_stay(shape: tuple[int, ...]) -> None:
    kernel, tensors = layer_of("int4[1x32]", make_integers("int4[1x32]", [32], 128), Int4Pack)
    result = kernel.apply(tensors, torch.ones(shape, dtype=torch.bfloat16), None)
    assert result.shape == (*shape[:-1], 32)


@pytest.mark.parametrize("m", [1, 33])
def test_bias_is_added_once(m: int) -> None:
    weight = make_integers("int4[1x32]", [32], 128)
    weight.segments[0].codes.zero_()
    kernel, tensors = layer_of("int4[1x32]", weight, Int4Pack)
    x = torch.randn(m, 128).bfloat16()
    assert kernel.apply(tensors, x, torch.full((32,), 100.0)).unique().tolist() == [100.0]


def test_blocks_of_another_processor_are_refused() -> None:
    kernel, tensors = layer_of("int4[1x32]", make_integers("int4[1x32]", [32], 64), Int4Pack)
    moved = {name.replace(BLOCKS, "weight_blocks_vsx"): t for name, t in tensors.items()}
    with pytest.raises(FormatError, match="laid out for another processor") as caught:
        kernel.apply(moved, torch.ones(1, 64, dtype=torch.bfloat16), None)
    assert "it has weight_blocks_vsx" in caught.value.why[0]
    with pytest.raises(FormatError, match="laid out for another processor"):
        kernel.restore(moved)
