"""The layers to tune: those of a checkpoint, as they are, merged or divided; or shapes alone.

>>> parse_shapes("4096x7168, 2112x7168")
[(4096, 7168), (2112, 7168)]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantdock.configs.matcher import FUSION
from quantdock.diagnosis.case import Case, Options
from quantdock.diagnosis.sharding import Heads, Sharding
from quantdock.errors import ConfigError, few
from quantdock.kernel import Policy, Problem
from quantdock.plan import LayerPlan
from quantdock.plan.setting import bind_config
from quantdock.platform import Platform
from quantdock.registry import choose_method, dispatch_for
from quantdock.schemes import LayerFacts, Scheme, parse_scheme

# Methods whose layers are measured where shapes are given and no method is.
METHODS = ("fp8_per_channel", "fp8_per_block")
_SHAPE = re.compile(r"0*([1-9]\d*)\s*x\s*0*([1-9]\d*)", re.IGNORECASE)
_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerToTune:
    """A layer as a kernel sees it, the kernel that runs it, and how many there are."""

    kernel: str
    problem: Problem
    count: int = 1


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """Return the shapes (N, K) that a user writes as ``NxK,NxK``.

    Raises:
        ConfigError: a word is no shape.
    """
    shapes = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _SHAPE.fullmatch(word)
        if match is None:
            raise ConfigError(
                f"--shapes {word!r} is no shape of a layer.",
                why=["a shape is output features x input features, both at least 1"],
                todo="Write it like 4096x7168, several with commas between them.",
            )
        shapes.append((int(match[1]), int(match[2])))
    return shapes


def layers_of_checkpoint(
    path: str | Path, options: Options, *, merge: bool = False
) -> tuple[LayerToTune, ...]:
    """Return the quantized layers of a checkpoint that has kernels for them, equal ones together.

    Args:
        options: as for ``doctor``; with ``tp`` ranks each layer is the part of one of them.
        merge: siblings are one layer, as in ``load(merge=True)`` and in engines.
    Raises:
        QuantDockError: the checkpoint is damaged, or the ranks cannot divide it.
    """
    case = Case(path, options)
    plans = [layer.plan for layer in case.layers if _can_be_tuned(layer.plan)]
    sizes = _divided(case, options.tp) if options.tp > 1 else {}
    groups = _merged(plans) if merge else [[plan] for plan in plans]
    found: dict[LayerToTune, int] = {}
    for group in groups:
        layer = _layer(group, sizes, case.dtype)
        found[layer] = found.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in found.items())


def layers_of_shapes(
    shapes: Iterable[tuple[int, int]], platform: Platform, methods: Sequence[str] = METHODS
) -> tuple[LayerToTune, ...]:
    """Return layers of some shapes, as each online method would have them on ``platform``.

    Raises:
        QuantDockError: there is no such method, or no kernel for what it makes.
    """
    schemes = [_scheme_of(method, platform) for method in methods]
    return layers_of_schemes(shapes, platform, schemes)


def layers_of_schemes(
    shapes: Iterable[tuple[int, int]], platform: Platform, schemes: Sequence[Scheme]
) -> tuple[LayerToTune, ...]:
    """Return layers of some shapes, in each scheme, with the kernel that runs it."""
    dispatch, found = dispatch_for(platform), []
    for n, k in shapes:
        for scheme in schemes:
            problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype=_DTYPE)
            selection = dispatch.select(problem)
            executed = replace(problem, scheme=selection.scheme)
            found.append(LayerToTune(kernel=selection.kernel.name, problem=executed))
    return tuple(dict.fromkeys(found))


def _scheme_of(method: str, platform: Platform) -> Scheme:
    """Return what an online method makes of a layer that nothing else is said of."""
    choice = choose_method(method, None, platform)
    decision = bind_config(choice, Policy(), (), None).scheme_for(LayerFacts(prefix="layer"))
    if decision.scheme is None:
        raise ConfigError(
            f"{method} quantizes no layer without a checkpoint.",
            why=[decision.because],
            todo=f"Name a checkpoint, or an online method: {', '.join(METHODS)}.",
        )
    return decision.scheme


def _can_be_tuned(plan: LayerPlan) -> bool:
    has_shape = plan.n is not None and plan.k is not None
    return plan.decision == "quantized" and plan.kernel is not None and has_shape


def _layer(
    plans: Sequence[LayerPlan], sizes: Mapping[str, tuple[int, int]], dtype: str
) -> LayerToTune:
    """Return the layer that plans of one input make together, each of its part's size."""
    shapes = [sizes.get(plan.prefix, (plan.n or 0, plan.k or 0)) for plan in plans]
    first, shards = plans[0], tuple(n for n, _ in shapes)
    problem = Problem(
        scheme=parse_scheme(_executed(first)),
        n=sum(shards),
        k=shapes[0][1],
        shards=shards,
        dtype=dtype,
    )
    return LayerToTune(kernel=first.kernel or "", problem=problem)


def _executed(plan: LayerPlan) -> str:
    return plan.substitution.target if plan.substitution else plan.scheme or ""


def _merged(plans: Sequence[LayerPlan]) -> Iterator[list[LayerPlan]]:
    """Yield plans, those of siblings with one scheme and kernel together."""
    by_name = {plan.prefix: plan for plan in plans}
    for plan in plans:
        if plan.prefix not in by_name:  # it came with a sibling
            continue
        stem, dot, last = plan.prefix.rpartition(".")
        shards = next((s for s in FUSION.values() if last in s), (last,))
        members = [by_name.get(f"{stem}{dot}{shard}") for shard in shards]
        alike = [
            m for m in members
            if m is not None and (m.scheme, m.kernel, m.k) == (plan.scheme, plan.kernel, plan.k)
        ]  # fmt: skip
        group = alike if len(alike) == len(shards) else [plan]
        for member in group:
            del by_name[member.prefix]
        yield group


def _divided(case: Case, ranks: int) -> dict[str, tuple[int, int]]:
    """Return the size [N, K] of the largest part of each layer that ranks divide.

    Raises:
        ConfigError: a layer cannot be divided among so many.
    """
    sharding = Sharding(case.layers, case.setting.config, Heads.read(case.config), {})
    if refusals := list(sharding.refusals(ranks)):
        reason, name = refusals[0]
        sizes = ", ".join(map(str, sharding.legal_sizes()))
        raise ConfigError(
            f"{few([name for _, name in refusals], 3)}: {reason}.",
            todo=f"Give --tp a number of ranks that divides every layer: {sizes}.",
        )
    shapes = {layer.prefix: (layer.plan.n or 0, layer.plan.k or 0) for layer in case.layers}
    found = {}
    for name, side, width in sharding.widths(ranks):
        n, k = shapes[name]
        found[name] = (width, k) if side == "rows" else (n, width)
    return found
