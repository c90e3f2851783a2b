"""fp4 and fp6 weights on NVIDIA GPUs: the layout, and layers on the CPU."""

from __future__ import annotations

import pytest
import torch

from integer_weights import assert_same
from quantdock.errors import FormatError
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.numerics import join, quantize_weight
from quantdock.schemes import parse_scheme

SCHEMES = (
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3",
    "fp6_e2m3[1x32]:e8m0:even",
    "fp6_e3m2[1x32]:e8m0:even",
)


# Kernels by name, and schemes; in blocks are those of Hopper.
LAYERS = [
    *(("CudaSmallFloatLinear", text) for text in SCHEMES),
    *(("CudaPackedFloatLinear", text) for text in SCHEMES if text.startswith("fp4")),
]


def made(text, sizes, k, kind="CudaSmallFloatLinear"):
    """Return (layer, its tensors, canonical weight) of shards whose second scales differ."""
    from quantdock_cuda import small_float_linear

    scheme = parse_scheme(text)
    parts = [
        quantize_weight(torch.randn(n, k) * (i + 1), scheme.weight) for i, n in enumerate(sizes)
    ]
    weight = join(parts)
    layer = getattr(small_float_linear, kind)(
        Problem(scheme=scheme, n=sum(sizes), k=k, shards=tuple(sizes), dtype="bfloat16")
    )
    return layer, layer.prepare(weight), weight


@pytest.mark.parametrize("kind, text", LAYERS)
@pytest.mark.parametrize("sizes, k", [((70,), 160), ((64, 33, 8), 96), ((5,), 512)])
def test_going_back_gives_every_bit(kind, text, sizes, k):
    layer, tensors, weight = made(text, sizes, k, kind)
    assert all(t.is_contiguous() for t in tensors.values())
    packed = kind == "CudaPackedFloatLinear"
    assert tensors["weight_scale_bytes"].dtype == (torch.int32 if packed else torch.uint8)
    assert_same(weight, layer.restore(tensors))


@pytest.mark.parametrize("kind, text", LAYERS)
def test_a_layer_that_is_offloaded_runs_on_the_cpu(kind, text):
    layer, tensors, weight = made(text, (40, 24), 160, kind)
    x, bias = torch.randn(2, 3, 160).to(torch.bfloat16), torch.randn(64).to(torch.bfloat16)
    expected = oracle.linear(parse_scheme(text), weight, x, bias).float()
    found = layer.apply(tensors, x, bias)
    assert found.dtype == torch.bfloat16 and found.shape == (2, 3, 64)
    assert (found.float() - expected).norm() / expected.norm() < 2.0**-7
    assert layer.apply(tensors, x[:, :0], bias).shape == (2, 0, 64)
    partial = layer.apply_partial(tensors, x)
    exact = oracle.linear(parse_scheme(text), weight, x.float(), None)
    assert partial.dtype == torch.float32
    assert (partial - exact).norm() / exact.norm() < 1e-5


@pytest.mark.parametrize("kind", ["CudaSmallFloatLinear", "CudaPackedFloatLinear"])
def test_the_gradient_of_x(kind):
    layer, tensors, weight = made(SCHEMES[0], (64,), 96, kind)
    x = torch.randn(3, 96, requires_grad=True)
    layer.apply(tensors, x, None).sum().backward()
    assert torch.allclose(x.grad, weight.dequantize().sum(0).expand(3, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["CudaSmallFloatLinear", "CudaPackedFloatLinear"])
def test_scales_that_the_kernel_cannot_hold_are_refused(kind):
    from quantdock_cuda import small_float_linear

    scheme = parse_scheme("fp4_e2m1[1x32]:e8m0:even")
    problem = Problem(scheme=scheme, n=8, k=64, shards=(8,))
    layer = getattr(small_float_linear, kind)(problem)
    for power in (60, -80):
        weight = quantize_weight(torch.randn(8, 64) * 2.0**power, scheme.weight)
        assert_same(weight, layer.restore(layer.prepare(weight)))
    with pytest.raises(FormatError, match=r"is above 2\^65"):
        layer.prepare(quantize_weight(torch.randn(8, 64) * 2.0**90, scheme.weight))


def test_second_scales_along_a_row_are_refused():
    from quantdock_cuda.small_float_linear import CudaSmallFloatLinear

    scheme = parse_scheme("fp4_e2m1[1x16]:e4m3:second[1x32]")
    layer = CudaSmallFloatLinear(Problem(scheme=scheme, n=8, k=64))
    with pytest.raises(FormatError, match="differ along a row"):
        layer.prepare(quantize_weight(torch.randn(8, 64), scheme.weight))


@pytest.mark.parametrize("kind_of", ["fp4_e2m1[1x16]:e4m3", "fp4_e2m1[1x32]:e8m0:even"])
@pytest.mark.parametrize("shared_bytes", [232448, 166912, 101376])
def test_tiles_fit_every_architecture(kind_of, shared_bytes):
    from quantdock_cuda.device import Device
    from quantdock_cuda.small_float_execution import MOST_FUSED, TILES, tile_for
    from quantdock_triton.small_float_matmul import small_float_of

    device = Device(arch="sm_x", features=frozenset(), num_sms=108, shared_bytes=shared_bytes)
    kind = small_float_of(parse_scheme(kind_of).weight)
    for m in range(1, MOST_FUSED + 1):
        tile = tile_for(kind, device, 4096, 4096, m)
        assert tile.shared_bytes(kind.packing) <= shared_bytes - 4096
        assert tile.m <= next(rows for rows in TILES if m <= rows)


def test_sums_are_divided_until_the_device_is_full():
    from quantdock_cuda.device import Device
    from quantdock_cuda.small_float_execution import MOST_FUSED, tile_for, turns
    from quantdock_triton.small_float_matmul import SmallFloat

    device = Device(arch="sm_90", features=frozenset(), num_sms=132, shared_bytes=232448)
    kind = SmallFloat(element="fp4_e2m1", group=32, scale="e8m0")
    few, many = (tile_for(kind, device, 4096, 4096, m) for m in (1, MOST_FUSED))
    assert (few.m, few.parts, many.m, many.parts) == (16, 8, 64, 2)
    assert tile_for(kind, device, 14336, 4096, 1).parts == 2
    assert tile_for(kind, device, 64, 128, 1).parts == 1  # not more than there is to share
    assert list(turns(10000, 8192)) == [(0, 4096), (4096, 8192), (8192, 10000)]
    assert list(turns(300, 1 << 30)) == [(0, 256), (256, 300)]
