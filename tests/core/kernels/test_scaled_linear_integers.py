"""The reference layer on integers: 1 to 8 bits, zero points, act-order, inputs of every kind.

Tolerance as in test_scaled_linear: sums err by 2^-20 of the sum of all magnitudes.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from integer_weights import assert_same, layer_of, make_integers
from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.kernels import spans
from quantdock.kernels.oracle import quantized_activation
from quantdock.kernels.spans import cut
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.plan.layer import memory_bytes
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

ELEMENTS = [f"{sign}int{bits}" for sign, bits in product(("", "u"), range(1, 9))]
TILES = ("*x*", "1x*", "1x32", "1x24", "16x16", "300x8", "*x16")
ACTIVATIONS = (
    "",
    " x int8[1x*]:dynamic",
    " x int8[1x*]:zero:dynamic",
    " x int8[*x*]",
    " x int8[*x*]:zero",
    " x int8[1x32]:zero:dynamic",
    " x uint8[*x*]:zero:dynamic",
    " x int4[1x*]:dynamic",
    " x fp8_e4m3[1x*]:dynamic",
)


def expected_of(scheme: str, weight: CanonicalWeight, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result in f64, and the sums of all magnitudes."""
    rows = x.float() if weight.input_multiplier is None else x.float() * weight.input_multiplier
    activation = parse_scheme(scheme).activation
    if activation is not None:
        rows = quantized_activation(rows, activation, weight.input_scale, weight.input_zero)
    real = weight.dequantize(torch.float64)
    return rows.double() @ real.T, rows.double().abs() @ real.abs().T


def check(scheme: str, weight: CanonicalWeight, m: int, seed: int = 0) -> None:
    kernel, tensors = layer_of(scheme, weight)
    assert_same(weight, kernel.restore(tensors))
    x = torch.randn(m, weight.shape[1], generator=torch.Generator().manual_seed(seed))
    bias = torch.linspace(-2, 2, weight.shape[0])
    result = kernel.apply(tensors, x, bias)
    expected, magnitudes = expected_of(scheme, weight, x)
    expected = expected + bias.double()
    assert result.shape == expected.shape
    allowed = 2.0**-22 * expected.abs() + 2.0**-20 * (magnitudes + bias.abs())
    assert bool(((result.double() - expected).abs() <= allowed).all())


@settings(max_examples=150, deadline=None)
@given(
    element=st.sampled_from(ELEMENTS),
    tile=st.sampled_from(TILES),
    zero=st.sampled_from(["", ":zero"]),
    activation=st.sampled_from(ACTIVATIONS),
    multiplier=st.sampled_from(["", " + input multiplier"]),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    k=st.integers(1, 150),
    m=st.sampled_from([0, 1, 3, 33]),
)
def test_any_scheme_and_shape(
    element: str,
    tile: str,
    zero: str,
    activation: str,
    multiplier: str,
    sizes: list[int],
    k: int,
    m: int,
) -> None:
    scheme = f"{element}[{tile}]{zero}{activation}{multiplier}"
    check(scheme, make_integers(scheme, sizes, k, seed=k), m)


@settings(max_examples=80, deadline=None)
@given(
    element=st.sampled_from(ELEMENTS),
    cols=st.sampled_from([16, 32, 24]),
    zero=st.sampled_from(["", ":zero"]),
    activation=st.sampled_from(["", " x int8[1x*]:zero:dynamic", " x int8[1x32]:dynamic"]),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    k=st.integers(1, 150),
    m=st.sampled_from([1, 3, 33]),
    equal=st.booleans(),
    shared=st.booleans(),
)
def test_columns_in_any_order(
    element: str,
    cols: int,
    zero: str,
    activation: str,
    sizes: list[int],
    k: int,
    m: int,
    equal: bool,
    shared: bool,
) -> None:
    scheme = f"{element}[1x{cols}]{zero}:act-order{activation}"
    check(scheme, make_integers(scheme, sizes, k, seed=k, equal=equal, shared=shared), m)


@settings(max_examples=40, deadline=None)
@given(
    element=st.sampled_from(["int4", "uint4", "int2", "uint1", "uint8", "int3"]),
    tile=st.sampled_from(["1x*", "1x16", "1x24", "16x16"]),
    zero=st.sampled_from(["", ":zero"]),
    n=st.integers(1, 60),
    k=st.integers(1, 300),
)
def test_spans_and_pieces_are_seamless(element: str, tile: str, zero: str, n: int, k: int) -> None:
    scheme = f"{element}[{tile}]{zero}"
    weight = make_integers(scheme, [n], k, seed=n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "PIECE", 300)
        patch.setattr(spans, "COLUMNS", 40)
        cut.cache_clear()
        check(scheme, weight, 3)
    cut.cache_clear()


def weight_of(scheme: str, codes: Tensor, scale: float, zero: int | None = None) -> CanonicalWeight:
    spec = parse_spec(scheme.split(" x ")[0])
    grid = spec.grid(*codes.shape)
    segment = Segment(
        spec=spec,
        codes=codes,
        scale=torch.full(grid, scale),
        zero=None if zero is None else torch.full(grid, zero, dtype=torch.int32),
    )
    return CanonicalWeight(segments=(segment,))


@pytest.mark.parametrize(("value", "expected"), [(1.0, 2.56), (-1.0, -2.56)])
def test_a_static_zero_point_is_subtracted(value: float, expected: float) -> None:
    """y = ((xq - zp) @ Wq.T) * sx * sw, with sx = 0.1, zp = 5, sw = 0.01 and 256 ones."""
    scheme = "int8[1x*] x int8[*x*]:zero"
    weight = weight_of(scheme, torch.ones(16, 256, dtype=torch.int8), 0.01)
    weight = CanonicalWeight(
        segments=weight.segments,
        input_scale=torch.tensor([0.1]),
        input_zero=torch.tensor([5], dtype=torch.int32),
    )
    kernel, tensors = layer_of(scheme, weight)
    result = kernel.apply(tensors, torch.full((3, 256), value), None)
    assert result.numpy() == pytest.approx(expected, rel=1e-6)


def test_shards_that_were_calibrated_apart_get_the_widest_range() -> None:
    """Ranges -12.8..12.7 and 0..51; 25.6 and -10 lie in one of them each, so both survive."""
    scheme = "int8[1x*] x int8[*x*]:zero"
    one = weight_of(scheme, torch.ones(2, 4, dtype=torch.int8), 1.0).segments
    weight = CanonicalWeight(
        segments=(*one, *one),
        input_scale=torch.tensor([0.1, 0.2]),
        input_zero=torch.tensor([0, -128], dtype=torch.int32),
    )
    kernel, tensors = layer_of(scheme, weight)
    x = torch.tensor([[25.6, 25.6, 25.6, 25.6], [-10.0, -10.0, -10.0, -10.0]])
    result = kernel.apply(tensors, x, None)
    assert result[0].numpy() == pytest.approx(4 * 25.6, rel=0.01)
    assert result[1].numpy() == pytest.approx(-40.0, rel=0.02)
    assert_same(weight, kernel.restore(tensors))


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("int8[1x*] x int8[*x*]", "needs a static input scale and the weight brings none"),
        ("int8[1x*] + input multiplier", "needs an input multiplier and the weight brings none"),
    ],
)
def test_a_missing_input_is_named(scheme: str, message: str) -> None:
    weight = weight_of("int8[1x*]", torch.ones(2, 4, dtype=torch.int8), 1.0)
    with pytest.raises(FormatError, match=message):
        layer_of(scheme, weight)


def test_an_input_zero_point_too_many_is_named() -> None:
    weight = weight_of("int8[1x*]", torch.ones(2, 4, dtype=torch.int8), 1.0)
    weight = CanonicalWeight(
        segments=weight.segments,
        input_scale=torch.ones(1),
        input_zero=torch.ones(1, dtype=torch.int32),
    )
    with pytest.raises(FormatError, match="needs no input_zero and the weight brings one"):
        layer_of("int8[1x*] x int8[*x*]", weight)


@pytest.mark.parametrize(
    ("element", "bytes_"), [("int1", 25), ("uint2", 50), ("int3", 100), ("uint4", 100)]
)
def test_few_bits_lie_packed(element: str, bytes_: int) -> None:
    _, tensors = layer_of(f"{element}[1x*]", make_integers(f"{element}[1x*]", [8], 200))
    assert (tensors["weight"].dtype, tensors["weight"].shape) == (torch.uint8, (8, bytes_))


@pytest.mark.parametrize(
    "scheme",
    [
        "int4[1x128]",
        "uint4[1x32]:zero",
        "uint4[1x32]:bf16:zero:act-order",
        "int3[1x*] + input multiplier",
        "uint2[1x32]:zero",
        "int1[*x*]",
        "uint8[1x64]:zero",
        "fp8_e4m3[1x32]:e8m0:ceil",
    ],
)
def test_memory_is_what_plans_say(scheme: str) -> None:
    parsed = parse_scheme(scheme)
    # int1 has no largest code to be quantized by
    is_codes = parsed.weight.element == "int1"
    values = torch.randn(48, 200)
    weight = make_integers(scheme, [48], 200) if is_codes else sample_weight(values, parsed)
    _, tensors = layer_of(scheme, weight)
    held = sum(tensor.nbytes for tensor in tensors.values())
    assert held == memory_bytes(parsed, 48, 200, "bfloat16")


@pytest.mark.parametrize(
    ("element", "high", "dtype"),
    [("uint4", 16, torch.int8), ("uint8", 255, torch.uint8), ("uint8", 256, torch.int32)],
)
def test_zero_points_take_a_byte_where_they_fit(
    element: str, high: int, dtype: torch.dtype
) -> None:
    codes = torch.zeros(2, 4, dtype=torch.uint8)
    scheme = f"{element}[1x*]:zero"
    _, tensors = layer_of(scheme, weight_of(scheme, codes, 1.0, zero=high))
    assert tensors["weight_zero"].dtype == dtype


@pytest.mark.parametrize("k", [4096, 65_536, 262_144])
@pytest.mark.parametrize(
    ("scheme", "zero"),
    [("int4[1x128]", None), ("uint4[1x128]:zero", 8), ("uint8[1x128]:zero", 128)],
)
def test_long_sums_of_integers_do_not_drift(scheme: str, zero: int | None, k: int) -> None:
    signs = torch.tensor([1, -1]).repeat(k // 2).expand(16, k)
    spec = parse_spec(scheme)
    codes = signs.to(torch.int8) if zero is None else (signs + zero).to(torch.uint8)
    kernel, tensors = layer_of(str(spec), weight_of(scheme, codes, 1.0, zero))
    x = 1 + 0.01 * torch.randn(2, k, generator=torch.Generator().manual_seed(k))
    expected = x.double() @ signs.double().T
    allowed = 2.0**-8 * expected.abs() + 2.0**-20 * x.double().abs().sum(1, keepdim=True)
    error = (kernel.apply(tensors, x, None).double() - expected).abs()
    assert bool((error <= allowed).all())


def test_asymmetric_sums_beyond_32_bits() -> None:
    """255 * 255 * 262,144 = 1.7e10, in zero-point form on both sides."""
    k, scheme = 262_144, "uint8[1x*]:zero x int8[*x*]:zero"
    codes = torch.full((16, k), 255, dtype=torch.uint8)
    weight = CanonicalWeight(
        segments=weight_of("uint8[1x*]:zero", codes, 0.5, zero=0).segments,
        input_scale=torch.ones(1),
        input_zero=torch.tensor([-128], dtype=torch.int32),
    )
    kernel, tensors = layer_of(scheme, weight)
    result = kernel.apply(tensors, torch.full((2, k), 255.0), None)
    assert result.double().numpy() == pytest.approx(255 * 255 * k * 0.5, rel=2.0**-23)


@pytest.mark.parametrize("m", [1, 33])
@pytest.mark.parametrize("scheme", ["int4[1x32]", "uint4[1x32]:zero", "int2[1x*]"])
def test_bias_is_added_once(scheme: str, m: int) -> None:
    weight = make_integers(scheme, [40], 64)
    segment = weight.segments[0]
    segment.scale.zero_()
    kernel, tensors = layer_of(scheme, weight)
    result = kernel.apply(tensors, torch.randn(m, 64), torch.full((40,), 100.0))
    assert result.unique().tolist() == [100.0]


@pytest.mark.parametrize("shape", [(64,), (1, 7, 64), (2, 3, 5, 64), (2, 0, 64)])
@pytest.mark.parametrize("scheme", ["uint4[1x32]:zero:act-order", "int3[1x*] + input multiplier"])
def test_leading_dimensions_stay(scheme: str, shape: tuple[int, ...]) -> None:
    kernel, tensors = layer_of(scheme, make_integers(scheme, [40], 64))
    result = kernel.apply(tensors, torch.ones(shape, dtype=torch.bfloat16), None)
    assert (result.shape, result.dtype) == ((*shape[:-1], 40), torch.bfloat16)
