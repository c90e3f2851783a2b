"""The reference layer against the oracle: schemes, tiles, shapes, dtypes, bias.

Tolerance: one step of x's dtype, and sums that err by 2^-20 of the sum of all magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.kernel import Problem
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import parse_scheme

Make = Callable[..., CanonicalWeight]
Check = Callable[..., None]

WEIGHTS = ("fp8_e4m3[*x*]", "fp8_e4m3[1x*]", "fp8_e4m3[128x128]", "fp8_e4m3[1x32]:e8m0:ceil")
PER_TOKEN = "fp8_e4m3[1x*]:dynamic"
SCHEMES = [
    *WEIGHTS,
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    f"fp8_e4m3[*x*] x {PER_TOKEN}",
    f"fp8_e4m3[1x*] x {PER_TOKEN}",
    "fp8_e4m3[1x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[16x48] x fp8_e4m3[1x48]:e8m0:ceil:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "fp8_e5m2[1x*]",
    "fp8_e4m3fnuz[64x64] x fp8_e4m3fnuz[1x64]:dynamic",
    "fp8_e4m3fnuz[*x*] x fp8_e4m3fnuz[*x*]",
    "fp8_e5m2fnuz[1x*] x fp8_e5m2fnuz[1x*]:dynamic",
    "int8[1x*]",
    "int8[*x*] x int8[*x*]",
    "int8[1x*] x int8[1x*]:dynamic",
    "int8[32x32] x int8[1x32]:dynamic",
    "int8[1x128]:bf16",
]


def layer(scheme: str, weight: CanonicalWeight) -> tuple[ScaledLinear, dict[str, torch.Tensor]]:
    n, k = weight.shape
    sizes = tuple(s.codes.shape[0] for s in weight.segments)
    kernel = ScaledLinear(Problem(scheme=parse_scheme(scheme), n=n, k=k, shards=sizes))
    return kernel, kernel.prepare(weight)


@pytest.mark.parametrize("m", [0, 1, 3, 17, 64])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_agrees_with_the_oracle(
    scheme: str, m: int, make_weight: Make, assert_near: Check
) -> None:
    weight = make_weight(scheme, [96, 41], 200)
    kernel, tensors = layer(scheme, weight)
    x = torch.randn(m, 200, generator=torch.Generator().manual_seed(m))
    before = x.clone()
    assert_near(kernel.apply(tensors, x, None), scheme, weight, x, None)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[7], SCHEMES[9], SCHEMES[18]])
def test_every_dtype_with_bias(
    scheme: str, dtype: torch.dtype, make_weight: Make, assert_near: Check
) -> None:
    weight = make_weight(scheme, [130], 256)
    kernel, tensors = layer(scheme, weight)
    x = torch.randn(17, 256, generator=torch.Generator().manual_seed(5)).to(dtype)
    bias = torch.linspace(-50, 50, 130).to(dtype)
    assert_near(kernel.apply(tensors, x, bias), scheme, weight, x, bias)


@settings(max_examples=60, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    m=st.integers(0, 70),
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=3),
    k=st.integers(1, 150),
    has_bias=st.booleans(),
)
def test_any_shape(scheme: str, m: int, sizes: list[int], k: int, has_bias: bool) -> None:
    make, check = FIXTURES
    weight = make(scheme, sizes, k, seed=k)
    kernel, tensors = layer(scheme, weight)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
    bias = torch.ones(sum(sizes)) if has_bias else None
    check(kernel.apply(tensors, x, bias), scheme, weight, x, bias)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_restoring_gives_every_bit(scheme: str, make_weight: Make) -> None:
    weight = make_weight(scheme, [48, 32, 17], 72)
    kernel, tensors = layer(scheme, weight)
    back = kernel.restore(tensors)
    for old, new in zip(weight.segments, back.segments, strict=True):
        assert torch.equal(old.codes.view(torch.uint8), new.codes.view(torch.uint8))
        assert torch.equal(old.scale, new.scale)
    if weight.input_scale is None:
        assert back.input_scale is None
    else:
        assert torch.equal(back.input_scale, weight.input_scale)
    again = kernel.prepare(back)
    assert {name: t.shape for name, t in again.items()} == {n: t.shape for n, t in tensors.items()}


def test_codes_keep_one_byte_and_the_elements_dtype(make_weight: Make) -> None:
    _, tensors = layer("fp8_e4m3[128x128]", make_weight("fp8_e4m3[128x128]", [256], 256))
    assert sorted(tensors) == ["weight", "weight_scale"]
    assert tensors["weight"].dtype == torch.float8_e4m3fn
    assert tensors["weight"].shape == (256, 256)
    assert tensors["weight_scale"].shape == (2, 2)
    assert tensors["weight_scale"].dtype == torch.float32


def test_static_activations_need_their_scale(make_weight: Make) -> None:
    weight = make_weight("fp8_e4m3[*x*]", [8], 16)
    with pytest.raises(FormatError, match="needs a static input scale and the weight brings none"):
        layer("fp8_e4m3[*x*] x fp8_e4m3[*x*]", weight)


def test_a_wrong_number_of_columns_is_named(make_weight: Make) -> None:
    kernel, tensors = layer("fp8_e4m3[*x*]", make_weight("fp8_e4m3[*x*]", [8], 16))
    with pytest.raises(FormatError, match=r"16 input features was given x of shape \(2, 15\)"):
        kernel.apply(tensors, torch.ones(2, 15), None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_are_no_activations(make_weight: Make, dtype: torch.dtype) -> None:
    """The result has the dtype of x, and would be cut to it without a word."""
    kernel, tensors = layer("fp8_e4m3[*x*]", make_weight("fp8_e4m3[*x*]", [8], 16))
    with pytest.raises(FormatError, match=f"A layer was given x in {dtype}"):
        kernel.apply(tensors, torch.ones(2, 16, dtype=dtype), None)


def test_warming_up_needs_nothing(make_weight: Make) -> None:
    kernel, tensors = layer("fp8_e4m3[*x*]", make_weight("fp8_e4m3[*x*]", [8], 16))
    kernel.warmup([1, 64])
    assert kernel.apply(tensors, torch.zeros(1, 16), None).tolist() == [[0.0] * 8]


FIXTURES: tuple[Make, Check]


@pytest.fixture(autouse=True)
def fixtures_for_hypothesis(make_weight: Make, assert_near: Check) -> None:
    """Keep the fixtures where a hypothesis test finds them: they hold no state."""
    global FIXTURES
    FIXTURES = make_weight, assert_near
