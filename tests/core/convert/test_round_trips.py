"""Any integer weight through every dialect that has words for it: the same weight comes back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.convert.awq import AWQ
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.gptq import GPTQ
from quantdock.formats import QuantSpec
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.schemes import LayerFacts, Scheme

NAME = "model.layers.0.up_proj"
DIALECTS = {"gptq": GPTQ, "awq": AWQ, "compressed-tensors": COMPRESSED}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A weight of random codes, scales (negative ones and 0 too), zero points and groups."""

    bits: int
    group: int | None
    symmetric: bool
    act_order: bool
    n: int
    groups: int
    seed: int

    @property
    def scheme(self) -> Scheme:
        kind = "int" if self.symmetric else "uint"
        spec = QuantSpec(
            element=f"{kind}{self.bits}", rows=1, cols=self.group, zero=not self.symmetric
        )
        ordered = self.act_order and self.group is not None
        return Scheme(weight=replace(spec, act_order=ordered))

    def weight(self) -> CanonicalWeight:
        generator = torch.Generator().manual_seed(self.seed)
        spec, k = self.scheme.weight, (self.group or 32) * self.groups
        grid = spec.grid(self.n, k)
        low = -(1 << self.bits - 1) if self.symmetric else 0
        codes = torch.randint(low, low + (1 << self.bits), (self.n, k), generator=generator)
        scale = torch.randn(grid, generator=generator).half().float()
        scale[0, 0] = 0.0
        zero = torch.randint(0, 1 << self.bits, grid, generator=generator, dtype=torch.int32)
        index = torch.randint(0, grid[1], (k,), generator=generator, dtype=torch.int32)
        segment = Segment(
            spec=spec,
            codes=codes.to(torch.int8 if self.symmetric else torch.uint8),
            scale=scale,
            zero=None if self.symmetric else zero,
            group_index=index if spec.act_order else None,
        )
        return CanonicalWeight(segments=(segment,))


CASES = st.builds(
    Case,
    bits=st.sampled_from((2, 3, 4, 8)),
    group=st.sampled_from((None, 32, 64, 128)),
    symmetric=st.booleans(),
    act_order=st.booleans(),
    n=st.sampled_from((32, 64, 96)),
    groups=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)


def through(dialect, scheme, weight):
    """Return what the dialect's reader makes of what the dialect writes."""
    layers = {NAME: scheme}
    dialect = dialect.for_layers(layers)
    shape = weight.shape
    described = dialect.describe(scheme, *shape, "float16")
    tensors = dialect.encode(scheme, weight, "float16")
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {
        n: t.shape for n, t in described.items()
    }
    config = dialect.reader.from_config(dialect.make_block(layers, ()))
    facts = LayerFacts(prefix=NAME, stored=described)
    found = config.scheme_for(facts).scheme
    slots = config.slots(found, *shape, facts)
    stored = {s.name: tensors[s.name].reshape(s.shape) for s in slots if s.name in tensors}
    return config.decode(found, [stored], facts)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_every_bit_comes_back(name, case):
    dialect, weight = DIALECTS[name], case.weight()
    if dialect.for_layers({NAME: case.scheme}).why_not({NAME: case.scheme}):
        assert name == "awq" and (case.bits != 4 or case.scheme.weight.act_order)
        return
    read = through(dialect, case.scheme, weight)
    assert torch.equal(read.dequantize(), weight.dequantize())
    (before,), (after,) = weight.segments, read.segments
    assert torch.equal(before.scale, after.scale)
    if before.spec.zero:
        assert torch.equal(before.codes, after.codes)
        assert torch.equal(before.zero, after.zero.to(torch.int32))


@settings(max_examples=30, deadline=None)
@given(case=CASES, way=st.permutations(list(DIALECTS)))
def test_a_journey_through_dialects_changes_nothing(case, way):
    scheme, weight = case.scheme, case.weight()
    expected = weight.dequantize()
    for name in way:
        dialect = DIALECTS[name].for_layers({NAME: scheme})
        if not dialect.why_not({NAME: scheme}):
            weight = through(dialect, scheme, weight)
            scheme = replace(scheme, weight=weight.segments[0].spec)
    assert torch.equal(weight.dequantize(), expected)
