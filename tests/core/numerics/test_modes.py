"""The same bits under torch.compile, the same layout on fake tensors, and a bound on memory."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from quantdock.formats import QuantSpec, parse_spec
from quantdock.numerics import dequantize, quantize

pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own
SPECS = [
    "fp8_e4m3[1x*]",
    "fp8_e4m3[128x128]",
    "fp8_e4m3[1x32]:e8m0:even",
    "int8[*x*]:zero",
    "fp6_e2m3[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
]


def round_trip(x: torch.Tensor, spec: QuantSpec) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = quantize(x, spec)
    zero, second = q.zero, q.second_scale
    real = dequantize(q.codes, q.scale, spec, zero=zero, second_scale=second, dtype=torch.bfloat16)
    return q.codes.view(torch.uint8), q.scale, real


@pytest.fixture(scope="module")
def x():
    return torch.randn(300, 200, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


@pytest.mark.parametrize("text", SPECS)
def test_fake_and_meta_tensors_have_the_same_layout(x, text):
    spec = parse_spec(text)
    real = round_trip(x, spec)
    with FakeTensorMode() as mode:
        fake = round_trip(mode.from_tensor(x), spec)
    for other in (fake, round_trip(x.to("meta"), spec)):
        assert [(t.shape, t.dtype, t.stride()) for t in other] == [
            (t.shape, t.dtype, t.stride()) for t in real
        ]


@pytest.mark.parametrize("text", SPECS)
def test_compiled_bits_are_the_same(x, text):
    spec = parse_spec(text)
    torch.compiler.reset()
    compiled = torch.compile(round_trip, fullgraph=True, backend="eager")
    for ours, theirs in zip(round_trip(x, spec), compiled(x, spec), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize(
    "text", ["fp8_e4m3[1x32]:bf16", "fp4_e2m1[1x16]:e4m3:second[*x*]", "fp6_e3m2[1x32]:e8m0:even"]
)
def test_generated_code_gives_the_same_bits_at_the_edges(x, text):
    """Torch 2.13 drops the last columns of padded groups, and casts to bf16 that are cast back."""
    spec = parse_spec(text)
    torch.compiler.reset()
    compiled = torch.compile(round_trip, fullgraph=True)
    for ours, theirs in zip(round_trip(x, spec), compiled(x, spec), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.device
@pytest.mark.parametrize("text", SPECS)
def test_an_accelerator_gives_the_same_bits(x, text):
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        pytest.skip("needs an accelerator that torch knows")
    spec = parse_spec(text)
    for ours, theirs in zip(round_trip(x, spec), round_trip(x.to(device), spec), strict=True):
        assert torch.equal(ours, theirs.cpu())


def test_one_compilation_serves_every_number_of_tokens():
    spec = parse_spec("fp8_e4m3[1x*]")
    torch.compiler.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(round_trip, fullgraph=True, dynamic=True, backend=keep)
    for tokens in (2, 5, 17, 64):
        x = torch.randn(tokens, 64)
        for ours, theirs in zip(round_trip(x, spec), compiled(x, spec), strict=True):
            assert torch.equal(ours, theirs)
    assert len(graphs) == 1


class LargestFloat(TorchDispatchMode):
    """Remembers the most elements of any f32 tensor that was made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("text", SPECS)
def test_no_f32_copy_of_a_large_weight_is_ever_whole(text):
    weight = torch.zeros(1024, 2048, dtype=torch.bfloat16)
    with LargestFloat() as seen:
        round_trip(weight, parse_spec(text))
    assert 0 < seen.elements <= 1 << 18
