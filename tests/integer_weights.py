"""Integer weights made of random codes: every element, zero points, act-order, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.kernel import Problem
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import CanonicalWeight, Segment, torch_dtype
from quantdock.schemes import parse_scheme

INPUTS = ("input_scale", "input_zero", "input_multiplier")


def make_integers(
    scheme: str,
    sizes: Sequence[int],
    k: int,
    *,
    seed: int = 0,
    equal: bool = True,
    shared: bool = True,
) -> CanonicalWeight:
    """Return a weight of ``scheme`` with random codes, scales of both signs and zero points.

    Args:
        equal: groups in act-order have equal sizes, as GPTQ makes them, or any.
        shared: the segments have one group index.
    """
    parsed = parse_scheme(scheme)
    random = torch.Generator().manual_seed(seed)
    index = _group_index(parsed.weight, k, random, equal=equal)
    segments = []
    for n in sizes:
        if not shared:
            index = _group_index(parsed.weight, k, random, equal=equal)
        segments.append(_segment(parsed.weight, n, k, random, index))
    activation, count = parsed.activation, len(sizes)
    is_static = activation is not None and not activation.dynamic
    has_zero = activation is not None and is_static and activation.zero
    return CanonicalWeight(
        segments=tuple(segments),
        input_scale=torch.rand(count, generator=random) * 0.02 + 0.01 if is_static else None,
        input_zero=_whole(-9, 9, (count,), random) if has_zero else None,
        input_multiplier=(
            torch.rand(k, generator=random) + 0.5 if parsed.input_multiplier else None
        ),
    )


def with_half_scales(weight: CanonicalWeight) -> CanonicalWeight:
    """Return a weight whose scales are numbers of float16, as files mostly have them."""
    segments = (replace(s, scale=s.scale.to(torch.float16).float()) for s in weight.segments)
    return replace(weight, segments=tuple(segments))


def on_device(weight: CanonicalWeight, device: str) -> CanonicalWeight:
    """Return a weight whose tensors are on a device, as loading decodes it there."""

    def moved(value: object) -> object:
        return value.to(device) if isinstance(value, Tensor) else value

    def all_moved(part: Any) -> Any:
        return replace(part, **{f.name: moved(getattr(part, f.name)) for f in fields(part)})

    segments = tuple(all_moved(s) for s in weight.segments)
    result: CanonicalWeight = all_moved(replace(weight, segments=segments))
    return result


def layer_of(
    scheme: str, weight: CanonicalWeight, kind: type[ScaledLinear] = ScaledLinear
) -> tuple[ScaledLinear, dict[str, Tensor]]:
    """Return a kernel and what it prepared from ``weight``."""
    n, k = weight.shape
    sizes = tuple(s.codes.shape[0] for s in weight.segments)
    kernel = kind(Problem(scheme=parse_scheme(scheme), n=n, k=k, shards=sizes))
    return kernel, kernel.prepare(weight)


def assert_same(old: CanonicalWeight, new: CanonicalWeight) -> None:
    """Assert that two weights are equal in every bit and every dtype."""
    pairs = [(getattr(old, name), getattr(new, name)) for name in INPUTS]
    for one, other in zip(old.segments, new.segments, strict=True):
        assert one.spec == other.spec
        names = ("codes", "scale", "zero", "group_index")
        pairs += [(getattr(one, name), getattr(other, name)) for name in names]
    for first, second in pairs:
        assert (first is None) == (second is None)
        if first is not None:
            assert first.dtype == second.dtype
            assert torch.equal(first, second)


def _segment(
    spec: QuantSpec, n: int, k: int, random: torch.Generator, index: Tensor | None
) -> Segment:
    kind = ELEMENTS[spec.element]
    low, high = int(kind.lowest), int(kind.largest)
    grid = spec.grid(n, k)
    return Segment(
        spec=spec,
        codes=_whole(low, high, (n, k), random).to(torch_dtype(kind.storage)),
        scale=torch.rand(grid, generator=random) * 0.02 - 0.005,
        zero=_whole(0, high - low + 1, grid, random) if spec.zero else None,
        group_index=index,
    )


def _group_index(spec: QuantSpec, k: int, random: torch.Generator, *, equal: bool) -> Tensor | None:
    if not spec.act_order or spec.cols is None:
        return None
    groups = torch.arange(k) // spec.cols
    if not equal:
        groups = _whole(0, int(groups[-1]), (k,), random)
    return groups[torch.randperm(k, generator=random)].to(torch.int32)


def _whole(low: int, high: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=random, dtype=torch.int32)
