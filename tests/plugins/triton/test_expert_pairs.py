"""Experts of few pairs in two kernels, under Triton's interpreter, beside kernels in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.kernels.expert_activation import ACTIVATIONS
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_triton.tile import Form, Tile

E, H, I = 5, 160, 96  # noqa: E741
IDS = {
    "one token": torch.tensor([[3, 1]]),
    "two, one of which has no expert": torch.tensor([[0, 4], [-1, 77]]),
    "all of another rank": torch.tensor([[5, 6]]),
}
BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
SCALED = (
    BLOCK,
    "fp8_e4m3[32x32] x fp8_e4m3[1x32]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[1x*]",
    "fp8_e4m3[128x128]",
)


@pytest.fixture
def modules(interpreted):
    """Return what is needed of the package, made for the interpreter."""
    names = ("route", "expert_matmul", "expert_pairs", "gate", "quantize", "expert_ends")
    return {name: interpreted(f"quantdock_triton.{name}") for name in names}


class Counted:
    """Counters, which every call has to leave as it finds them."""

    def __init__(self):
        self.counters = torch.zeros(64, dtype=torch.int32)

    def check(self):
        assert not self.counters.any()


def stacked(text, n, k):
    """Return the codes of experts and their scales."""
    spec = parse_scheme(text).weight
    made = [quantize_weight(torch.randn(n, k) / k**0.5, spec).segments[0] for _ in range(E)]
    return torch.stack([m.codes for m in made]), torch.stack([m.scale for m in made])


class Scaled:
    """Experts of 8-bit codes: two kernels, and kernels in a row with quantizers between."""

    def __init__(self, modules, text, order):
        scheme = parse_scheme(text)
        weight, self.spec = scheme.weight, scheme.activation
        self.form = Form(
            x_cols=(self.spec and self.spec.cols) or 0,
            weight_cols=weight.cols or 0,
            weight_rows=weight.rows or 1,
            element=weight.element,
            weight_only=self.spec is None,
        )
        if self.spec is not None and self.spec.rows is None:
            self.spec = replace(self.spec, rows=1)
        self.modules, self.n = modules, I if order == "up" else 2 * I
        self.tile = Tile(m=16, n=64, k=64 if self.spec is None else 128, stages=2, swap=True)
        self.w13, self.w2 = stacked(text, self.n, H), stacked(text, H, I)
        self.is_rounded = self.spec is not None

    def coded(self, x):
        if self.spec is None:
            return x, None
        codes, scale = self.modules["quantize"].quantizer(self.spec, x.shape[1])(x, None)
        return codes, scale

    def in_row(self, x, routing, biases, gate):
        matmul = self.modules["expert_matmul"]
        first = matmul.scaled(self.form, self.tile, self.n, H, biases is not None, True, False)
        hidden = torch.full((routing.num_tiles, self.n), torch.nan, dtype=x.dtype)
        biases = biases or (None, None)
        first(*self.coded(x), *self.w13, biases[0], hidden, routing)
        second = matmul.scaled(self.form, self.tile, H, I, biases[1] is not None, False, True)
        parts = torch.full((routing.num_tiles, H), torch.nan, dtype=x.dtype)
        second(*self.coded(gate(hidden)), *self.w2, biases[1], parts, routing)
        return parts

    def in_two(self, x, routing, biases, gate, sums):
        pairs, layer = self.modules["expert_pairs"], (self.form, self.spec, self.tile)
        assert pairs.takes(*layer, H)
        first = pairs.scaled(*layer, self.n, H, False, biases is not None, True, gate)
        inner = torch.full((routing.num_tiles, I), torch.nan, dtype=x.dtype)
        biases = biases or (None, None)
        first(x, *self.w13, biases[0], inner, routing)
        second = pairs.scaled(*layer, H, I, False, biases[1] is not None, False)
        parts = torch.full((routing.num_tiles, H), torch.nan, dtype=x.dtype)
        second(inner, *self.w2, biases[1], parts, routing, sums)


def compare(modules, text, ids, order, name, has_bias):
    """Assert that two kernels return what kernels in a row do."""
    experts, counted = Scaled(modules, text, order), Counted()
    x = torch.randn(len(ids), H).to(torch.float16)
    weights = torch.rand(ids.shape)
    biases = (torch.randn(E, experts.n), torch.randn(E, H)) if has_bias else None
    routing = modules["route"].route_directly(ids, E, 1)
    is_rounded = experts.is_rounded and (name, order) == ("silu", "gate_up")

    def gate(hidden):
        if is_rounded:
            up = hidden[:, I:]
            return torch.nn.functional.silu(hidden[:, :I]) * up
        return modules["gate"].gated(hidden, routing, I, name, order)

    parts = experts.in_row(x, routing, biases, gate)
    expected = modules["route"].sum_of_pairs(parts, weights, ids, routing, x.dtype)
    result = torch.full_like(expected, torch.nan)
    ends = modules["expert_ends"]
    sums = ends.Sums(result=result, weights=weights, counters=counted.counters)
    own = ends.Gate(name=name, order=order, is_rounded=is_rounded)
    experts.in_two(x, routing, biases, own, sums)
    counted.check()
    assert (result - expected).norm() <= 2e-3 * expected.norm()


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("text", SCALED)
def test_codes(modules, text, ids):
    compare(modules, text, ids, "gate_up", "silu", has_bias=False)


@pytest.mark.filterwarnings("ignore:overflow")  # of e^-v, where the sigmoid is 0
@pytest.mark.parametrize("order", ["gate_up", "interleaved", "up"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_with_biases(modules, order, name):
    compare(modules, BLOCK, IDS["one token"], order, name, has_bias=True)


def test_what_takes_other_steps_than_scales_is_left_to_kernels_in_a_row(modules):
    takes, tile = modules["expert_pairs"].takes, Tile(m=16, n=64, k=128)
    block = parse_scheme(BLOCK).activation
    assert takes(Form(x_cols=128, weight_cols=128, weight_rows=128), block, tile, 8192)
    assert not takes(Form(x_cols=128, weight_cols=128, weight_rows=128), block, tile, 8193)
    assert not takes(Form(x_cols=128, weight_cols=32, weight_rows=32), block, tile, 256)
    assert not takes(Form(), parse_scheme("fp8_e4m3[*x*] x fp8_e4m3[*x*]").activation, tile, 256)


def test_ids_that_lie_elsewhere_are_of_another_kind(modules, monkeypatch):
    """Those of one token are read several at once, as many as they are aligned for."""
    experts, keys = Scaled(modules, BLOCK, "up"), []
    run = modules["expert_pairs"].scaled(
        experts.form, experts.spec, experts.tile, H, I, False, False, False
    )
    monkeypatch.setattr(run, "_launcher", lambda *given: lambda key, *others: keys.append(key))
    ids = torch.zeros(12, dtype=torch.int32)
    inner, parts = torch.zeros(4, I, dtype=torch.float16), torch.zeros(4, H, dtype=torch.float16)
    for start in (0, 4, 1):
        routing = modules["route"].route_directly(ids[start : start + 4].view(1, 4), E, 1)
        run(inner, *experts.w2, None, parts, routing)
    assert keys[0] == keys[1] != keys[2]
