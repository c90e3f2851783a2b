"""Reading every tensor of a checkpoint once, layer by layer, and keeping what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quantdock.diagnosis.case import Case, Layer
from quantdock.diagnosis.stacked_weights import read_weights
from quantdock.diagnosis.tensor_values import (
    ValueFault,
    input_scale_faults,
    plain_faults,
    weight_faults,
)
from quantdock.diagnosis.zero_shift import mean_steps
from quantdock.errors import QuantDockError
from quantdock.formats import DTYPES
from quantdock.loading.sources import Sources
from quantdock.numerics import decode_scale


@dataclass(slots=True)
class Survey:
    """What was read, and what is wrong with it as (layer or tensor, fault)."""

    faults: list[tuple[str, ValueFault]] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)  # by layer; see zero_shift
    num_layers: int = 0
    num_plain: int = 0
    num_unread: int = 0


def survey(case: Case) -> Survey:
    """Return what the values of the wanted layers show; of all tensors where none was named."""
    found, sources = Survey(), Sources(case.checkpoint.tensors)
    faulty = {fault.layer for fault in case.faults}
    is_coded = {layer.prefix: layer.stored.layout.is_quantized for layer in case.layers}
    jobs: list[Any] = []
    for layer in case.wanted:
        if not is_coded[layer.prefix] or layer.prefix in faulty:
            continue
        scheme = layer.stored_as.scheme
        if scheme is None:
            continue
        shape = case.setting.config.weight_shape(scheme, layer.facts)
        if len(shape) != 2:
            found.num_unread += 1
        else:
            jobs.append(layer)
    wanted = {layer.prefix for layer in case.wanted} if case.options.layers else None
    scales = set(case.stored.cache_scales)
    for name, entry in case.checkpoint.tensors.items():
        prefix, _, last = name.rpartition(".")
        plain = not is_coded.get(prefix) or last == "bias"
        in_scope = wanted is None or prefix in wanted
        if in_scope and (name in scales or (plain and DTYPES[entry.dtype].floating)):
            jobs.append(name)
    for job in case.track(jobs):
        if isinstance(job, Layer):
            _read_layer(job, case, sources, found)
        else:
            _read_plain(job, job in scales, case, sources, found)
    return found


def _read_layer(layer: Layer, case: Case, sources: Sources, found: Survey) -> None:
    try:
        for name, weight in read_weights(case, layer, sources):
            if (steps := mean_steps(weight)) is not None:
                found.steps[name] = steps
            found.faults += [(name, fault) for fault in weight_faults(weight, case.setting.dtype)]
    except QuantDockError as error:
        text = "; ".join((error.what.removesuffix("."), *error.why))
        found.faults.append(
            (layer.prefix, ValueFault("fail", f"cannot be read: {text}", error.todo))
        )
        return
    found.faults[:] = dict.fromkeys(found.faults)  # gate and up may share one
    found.num_layers += 1


def _read_plain(name: str, is_scale: bool, case: Case, sources: Sources, found: Survey) -> None:
    tensor = sources.read(name)
    found.num_plain += 1
    faults = (
        input_scale_faults(decode_scale(tensor), "attention scale")
        if is_scale
        else plain_faults(tensor, case.setting.dtype)
    )
    found.faults += [(name, fault) for fault in faults]
