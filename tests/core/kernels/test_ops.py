"""The layer as a torch operator: fake tensors, devices, compiling."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from integer_weights import layer_of
from quantdock.formats import parse_spec
from quantdock.kernel import Problem
from quantdock.kernels import ops, scaled_linear
from quantdock.kernels.int4_pack import Int4Pack
from quantdock.kernels.int8_mm import Int8Mm
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import CanonicalWeight, Segment, quantize
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

SCHEME = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"


class Layer(nn.Module):
    """A layer as the linear methods hold it: the kernel's tensors are parameters."""

    def __init__(self, kind: type[ScaledLinear] = ScaledLinear, n: int = 160, k: int = 192) -> None:
        super().__init__()
        spec = parse_spec(SCHEME.split(" x ")[0])
        made = quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(0)), spec)
        segment = Segment(spec=spec, codes=made.codes, scale=made.scale)
        self.kernel = kind(Problem(scheme=parse_scheme(SCHEME), n=n, k=k))
        for name, tensor in self.kernel.prepare(CanonicalWeight(segments=(segment,))).items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel.apply(self._parameters, x, None)


def test_reloading_the_module_keeps_the_operator() -> None:
    before = {module: dict(vars(module)) for module in (ops, scaled_linear)}
    try:
        for module in before:
            importlib.reload(module)
        assert scaled_linear.ScaledLinear is not ScaledLinear
        assert Layer(scaled_linear.ScaledLinear)(torch.ones(2, 192)).shape == (2, 160)
    finally:  # other tests patch the classes that there were
        for module, names in before.items():
            vars(module).update(names)


def test_fake_tensors_give_the_shape_alone() -> None:
    layer = Layer()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = layer(mode.from_tensor(torch.empty(2, 0, 192, dtype=torch.bfloat16)))
    assert result.shape == (2, 0, 160)
    assert result.dtype == torch.bfloat16


def test_all_tensors_move_as_one() -> None:
    layer = Layer()
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(1))
    before = layer(x)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.to("meta")
    assert {p.device.type for p in layer.parameters()} == {"meta"}
    assert layer(x.to("meta")).shape == (3, 160)
    layer.to_empty(device="cpu")
    layer.load_state_dict(state)
    assert torch.equal(layer(x), before)


def test_inference_mode_changes_nothing() -> None:
    layer = Layer()
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        inside = layer(x).clone()
    assert torch.equal(layer(x), inside)


class Recorder(TorchDispatchMode):
    """Keeps the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_who_looks_at_the_call_sees_the_operator() -> None:
    layer = Layer()
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(1))
    expected = layer(x)
    with Recorder() as recorder:
        assert torch.equal(layer(x), expected)
    assert recorder.names[0] == "quantdock.scaled_linear.default"
    assert "quantdock.scaled_linear" in make_fx(layer)(x).code


@pytest.mark.parametrize("grad", [True, False])
def test_where_nobody_looks_the_function_is_called(grad: bool) -> None:
    layer, x = Layer(), torch.ones(3, 192)
    with torch.profiler.profile() as profile, torch.set_grad_enabled(grad):
        layer(x)
    assert ("quantdock::scaled_linear" in {event.name for event in profile.events()}) is grad


def test_the_plain_operator_says_that_it_has_no_gradient() -> None:
    """Layers call its twin where one is wanted: test_input_gradient.py."""
    layer = Layer()
    x = torch.ones(3, 192, requires_grad=True)
    given = [layer._parameters.get(name) for name in scaled_linear.NAMES]
    result = torch.ops.quantdock.scaled_linear(x, given, None, SCHEME, 192, [160])
    assert torch.equal(result, layer(x))
    with pytest.warns(UserWarning, match="quantdock::scaled_linear"):
        result.sum().backward()


def test_compiles_whole_without_a_compiler() -> None:
    layer = Layer()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for m in (1, 5):
        x = torch.randn(m, 192, generator=torch.Generator().manual_seed(m))
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
@pytest.mark.usefixtures("inductor")
def test_compiles_with_inductor() -> None:
    layer = Layer()
    compiled = torch.compile(lambda x: layer(x * 2) + 1, fullgraph=True)
    x = torch.randn(4, 192, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(compiled(x), layer(x * 2) + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (ScaledLinear, "uint4[1x32]:zero:act-order x int8[1x*]:zero:dynamic + input multiplier"),
        (Int4Pack, "uint4[1x32]:zero:act-order + input multiplier"),
        (Int8Mm, "int8[1x*] x int8[*x*]"),
    ],
)
def test_every_operator_is_traced_whole_and_has_a_shape(
    kind: type[ScaledLinear], scheme: str
) -> None:
    weight = sample_weight(torch.randn(32, 64), parse_scheme(scheme))
    kernel, tensors = layer_of(scheme, weight, kind)
    compiled = torch.compile(
        lambda x: kernel.apply(tensors, x, None), backend="eager", fullgraph=True
    )
    for m in (1, 5):
        x = torch.randn(m, 64, generator=torch.Generator().manual_seed(m)).bfloat16()
        assert torch.equal(compiled(x), kernel.apply(tensors, x, None))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = kernel.apply(tensors, mode.from_tensor(torch.empty(2, 3, 64)), None)
    assert (result.shape, result.dtype) == ((2, 3, 32), torch.float32)
