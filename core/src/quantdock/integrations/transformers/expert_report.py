"""The final plan of a layer's experts: one row, or one for w13 and one for w2 where they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from quantdock.integrations.transformers.found import FoundLayer
from quantdock.layers import FusedMoE
from quantdock.loading.sources import Sources
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.schemes import Decision

_W2 = "w2_"  # what the names of w2's parameters begin with


def plan_experts(
    layer: FoundLayer,
    module: FusedMoE,
    method: QuantizedExpertsMethod,
    decision: Decision,
    setting: Setting,
    sources: Sources,
) -> Iterator[LayerPlan]:
    """Yield the rows of ``layer``, each under the name of its first weight in the files.

    Args:
        decision: what w13 becomes, and mostly w2 too.
    """
    last = layer.experts[0].w2[0]
    other = replace(setting.decide(last), promised=method.promised[1])
    w13 = setting.plan(layer.facts, decision=decision, selection=method.kernels.w13)
    w2 = setting.plan(last, decision=other, selection=method.kernels.w2)
    held = {n: p.numel() * p.element_size() for n, p in module._parameters.items() if p is not None}
    steps, shard = (*method.value_steps, *method.notes), str(module.shape)
    w13 = replace(w13, shard=shard, warnings=(*w13.warnings, *steps))
    if _told(w13) == _told(w2):
        stored = _stored(layer.prefixes, sources)
        yield replace(w13, bytes_stored=stored, bytes_memory=sum(held.values()))
        return
    facts = [*zip(*((expert.w13, expert.w2) for expert in layer.experts), strict=True)]
    for row, matrix, own in zip((w13, w2), method.matrices, facts, strict=True):
        prefixes = (one.prefix for one in chain.from_iterable(own))
        names = (name for name in held if name.startswith(_W2) is (row is w2))
        yield replace(
            row,
            n=sum(len(part.rows) for _, part in matrix.cuts),
            k=len(matrix.cuts[0][1].columns),
            copies=method.num_experts,
            shard=shard,
            bytes_stored=_stored(tuple(dict.fromkeys(prefixes)), sources),
            bytes_memory=sum(held[name] for name in names),
        )


def _told(plan: LayerPlan) -> tuple[object, ...]:
    return plan.scheme, plan.kernel, plan.substitution, plan.promised


def _stored(prefixes: tuple[str, ...], sources: Sources) -> int:
    """Return the bytes of all that is stored under ``prefixes``."""
    return sum(e.num_bytes for prefix in prefixes for e in sources.under(prefix).values())
