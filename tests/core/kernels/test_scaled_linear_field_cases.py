"""Failures seen in the field, as values: each test names its symptom."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantdock.formats import parse_spec
from quantdock.kernel import Problem
from quantdock.kernels import scaled_linear as module
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import CanonicalWeight, Segment, torch_dtype
from quantdock.schemes import parse_scheme

FP8 = "fp8_e4m3[*x*]"
DYNAMIC = "fp8_e4m3[1x*]:dynamic"
Layer = tuple[ScaledLinear, dict[str, Tensor]]


def layer(
    scheme: str, shards: list[tuple[Tensor, float]], input_scale: list[float] | None = None
) -> Layer:
    """Return a layer of shards, each its codes' values and the scale of all its tiles."""
    parsed = parse_scheme(scheme)
    spec = parsed.weight
    dtype = torch.int8 if spec.element == "int8" else torch.float8_e4m3fn
    segments = tuple(
        Segment(
            spec=spec, codes=values.to(dtype), scale=torch.full(spec.grid(*values.shape), scale)
        )
        for values, scale in shards
    )
    static = None if input_scale is None else torch.tensor(input_scale)
    weight = CanonicalWeight(segments=segments, input_scale=static)
    n, k = weight.shape
    sizes = tuple(values.shape[0] for values, _ in shards)
    kernel = ScaledLinear(Problem(scheme=parsed, n=n, k=k, shards=sizes))
    return kernel, kernel.prepare(weight)


def run(made: Layer, x: Tensor, bias: Tensor | None = None) -> Tensor:
    kernel, tensors = made
    return kernel.apply(tensors, x, bias)


def test_fused_shards_keep_their_own_scales() -> None:
    shards = [(torch.full((n, 256), 16.0), s) for s, n in ((0.5, 256), (0.25, 128), (1.0, 128))]
    result = run(layer(FP8, shards), torch.ones(1, 256))[0]
    assert result[:256].unique().tolist() == [2048.0]
    assert result[256:384].unique().tolist() == [1024.0]
    assert result[384:].unique().tolist() == [4096.0]


@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x {DYNAMIC}", "fp8_e4m3[128x128]"])
def test_float16_sums_beyond_its_range_come_back_finite(scheme: str) -> None:
    """Weight 1.344, unscaled sum 8.8e7: the sum must be scaled before it becomes float16."""
    made = layer(scheme, [(torch.full((16, 4096), 448.0), 1.344 / 448)])
    x = torch.full((2, 4096), 8.0, dtype=torch.float16)
    assert run(made, x).float() == pytest.approx(torch.full((2, 16), 44040.0).numpy(), rel=5e-3)
    assert run(made, x * 2).isposinf().all()


@pytest.mark.parametrize("scheme", ["int8[1x*]", "int8[1x*] x int8[1x*]:dynamic"])
def test_float16_sums_of_integers_come_back_finite(scheme: str) -> None:
    made = layer(scheme, [(torch.full((16, 8192), 127), 1 / 127)])
    x = torch.full((2, 8192), 7.9, dtype=torch.float16)
    assert run(made, x).float() == pytest.approx(torch.full((2, 16), 64704.0).numpy(), rel=5e-3)


@pytest.mark.parametrize("scheme", [FP8, f"fp8_e4m3[1x*] x {DYNAMIC}", "fp8_e4m3[64x64]"])
def test_strides_of_x_are_honoured(scheme: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(128, 256, generator=generator)
    made = layer(scheme, [(weight, 0.5)])
    big = torch.randn(17, 384, generator=generator)
    rows = torch.randn(4, 10, 256, generator=generator)
    for x in (
        big[:, 64:320],
        torch.randn(256, 17, generator=generator).t(),
        rows[:, ::2, :],
        torch.randn(256, generator=generator).expand(9, 256),
        rows.transpose(0, 1),
    ):
        before = x.clone()
        assert torch.equal(run(made, x), run(made, x.contiguous()))
        assert torch.equal(x, before)


def test_a_weight_stored_in_a_padded_buffer() -> None:
    buffer = torch.randn(128, 288, generator=torch.Generator().manual_seed(1))
    padded = buffer.to(torch.float8_e4m3fn)
    spec = parse_spec(FP8)
    kernel = ScaledLinear(Problem(scheme=parse_scheme(FP8), n=128, k=256))
    results = []
    for codes in (padded[:, :256], padded[:, :256].contiguous()):
        segment = Segment(spec=spec, codes=codes, scale=torch.ones(1, 1))
        tensors = kernel.prepare(CanonicalWeight(segments=(segment,)))
        results.append(kernel.apply(tensors, torch.ones(3, 256), None))
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_symmetric_int8_has_no_zero_point(value: float) -> None:
    ones = torch.ones(16, 256)
    x = torch.full((3, 256), value)
    static = layer("int8[1x*] x int8[*x*]", [(ones, 0.01)], input_scale=[0.1])
    assert sorted(static[1]) == ["input_scale", "weight", "weight_scale"]
    assert run(static, x).numpy() == pytest.approx(2.56 * value)
    dynamic = layer("int8[1x*] x int8[1x*]:dynamic", [(ones, 0.01)])
    assert run(dynamic, x).numpy() == pytest.approx(2.56 * value, rel=1e-2)


def test_a_static_scale_saturates_and_nan_stays_in_its_row() -> None:
    made = layer(f"{FP8} x {FP8}", [(torch.eye(256), 1.0)], input_scale=[2.0**-7])
    rows = torch.tensor([1.0, 10.0, -torch.inf, torch.nan, 2.0])
    result = run(made, rows[:, None].expand(5, 256))
    assert result[:3].unique(dim=1).flatten().tolist() == [1.0, 3.5, -3.5]
    assert result[3].isnan().all()
    assert result[4].unique().tolist() == [2.0]


@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x {DYNAMIC}", "int8[1x*] x int8[1x*]:dynamic"])
def test_nan_in_x_touches_its_own_row_only(scheme: str) -> None:
    made = layer(scheme, [(torch.ones(64, 96), 1.0)])
    x = torch.ones(3, 96)
    x[1, 7] = torch.nan
    result = run(made, x)
    assert result[1].isnan().all()
    assert result[[0, 2]].numpy() == pytest.approx(96.0, rel=1e-6)


@pytest.mark.parametrize("element", ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"])
@pytest.mark.parametrize("tile", ["*x*", "16x16"])
def test_nan_codes_make_their_output_nan(element: str, tile: str) -> None:
    spec = parse_spec(f"{element}[{tile}]")
    nan = 0x80 if element.endswith("fnuz") else 0x7F
    codes = torch.zeros(40, 24, dtype=torch.uint8)
    codes[17, 3] = nan
    dtype = torch_dtype(
        {"fp8_e4m3": "float8_e4m3fn"}.get(element, element.replace("fp8", "float8"))
    )
    segment = Segment(spec=spec, codes=codes.view(dtype), scale=torch.ones(spec.grid(40, 24)))
    kernel = ScaledLinear(Problem(scheme=parse_scheme(str(spec)), n=40, k=24))
    tensors = kernel.prepare(CanonicalWeight(segments=(segment,)))
    result = kernel.apply(tensors, torch.ones(2, 24), None)
    assert result.isnan().any(0).nonzero().flatten().tolist() == [17]
    assert result[:, 16].tolist() == [0.0, 0.0]
    back = kernel.restore(tensors).segments[0].codes.view(torch.uint8)
    assert torch.equal(back, codes)


@pytest.mark.parametrize("k", [4096, 65_536, 262_144])
@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x {DYNAMIC}", "int8[1x*]"])
def test_long_sums_do_not_drift(scheme: str, k: int) -> None:
    signs = torch.tensor([1.0, -1.0]).repeat(k // 2).expand(16, k)
    made = layer(scheme, [(signs, 1.0)])
    x = 1 + 0.01 * torch.randn(2, k, generator=torch.Generator().manual_seed(k))
    rows = x.double()
    if "dynamic" in scheme:
        scale = x.abs().amax(1, keepdim=True) / 448
        rows = (x / scale).to(torch.float8_e4m3fn).double() * scale.double()
    expected = rows @ signs.double().T
    allowed = 2.0**-8 * expected.abs() + 2.0**-20 * rows.abs().sum(1, keepdim=True)
    assert bool(((run(made, x).double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize("m", [1, 5])
def test_integer_sums_beyond_32_bits(m: int) -> None:
    k = 262_144
    made = layer("int8[1x*] x int8[1x*]:dynamic", [(torch.full((16, k), 127), 0.5)])
    result = run(made, torch.full((m, k), 127.0))
    assert result.double().numpy() == pytest.approx(4_228_120_576 * 0.5, rel=2.0**-23)


@pytest.mark.parametrize("m", [1, 33])
@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x {DYNAMIC}", "fp8_e4m3[64x64]", "int8[1x*]"])
def test_bias_is_added_once(scheme: str, m: int) -> None:
    made = layer(scheme, [(torch.zeros(128, 256), 1.0)])
    result = run(made, torch.randn(m, 256), torch.full((128,), 100.0))
    assert result.unique().tolist() == [100.0]


@pytest.mark.parametrize("shape", [(256,), (1, 7, 256), (2, 3, 5, 256), (2, 0, 256), (0, 256)])
@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x {DYNAMIC}", f"{FP8} x fp8_e4m3[*x*]:dynamic"])
def test_leading_dimensions_stay(scheme: str, shape: tuple[int, ...]) -> None:
    made = layer(scheme, [(torch.ones(96, 256), 1.0)])
    result = run(made, torch.ones(shape, dtype=torch.bfloat16))
    assert result.shape == (*shape[:-1], 96)
    assert result.dtype == torch.bfloat16
    assert (result == 256).all()


@pytest.mark.parametrize("scheme", [FP8, f"{FP8} x fp8_e4m3[*x*]:dynamic", f"{FP8} x {DYNAMIC}"])
def test_many_rows_take_turns(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No product is larger than the limit, and the last row equals its own single call."""
    shapes = []
    real = module.multiply

    def recording(values: Tensor, *others: object, **options: bool) -> Tensor:
        result = real(values, *others, **options)  # type: ignore[arg-type]
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(module, "multiply", recording)
    monkeypatch.setattr(module, "LARGEST_TURN", 1000)
    made = layer(scheme, [(torch.randn(96, 64), 1.0)])
    x = torch.randn(37, 64, generator=torch.Generator().manual_seed(2))
    x[-1] = x.abs().max()  # so that a scale of the whole is a scale of the last row
    result = run(made, x)
    assert sum(m for m, _ in shapes) == 37
    assert max(m * n for m, n in shapes) <= 1000
    assert len(shapes) == 4
    assert torch.allclose(result[-1], run(made, x[-1:])[0], rtol=1e-5, atol=1e-4)


def test_the_limit_keeps_offsets_in_32_bits() -> None:
    turns = module.row_turns(65_552, 32_768)
    assert turns[0] == slice(0, 512)
    assert turns[-1].stop == 65_552
    assert all((t.stop - t.start) * 32_768 <= 2**24 for t in turns)


def test_all_zero_rows_and_blocks_give_zeros() -> None:
    made = layer(f"fp8_e4m3[16x16] x {DYNAMIC}", [(torch.zeros(32, 32), 2.0**-126)])
    assert run(made, torch.zeros(2, 32)).tolist() == [[0.0] * 32] * 2
    assert run(made, torch.ones(2, 32)).tolist() == [[0.0] * 32] * 2
