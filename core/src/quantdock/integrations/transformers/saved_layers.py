"""The quantized layers of a loaded model, one by one as files store them, whatever holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from quantdock.integrations.transformers.expert_places import bias_names
from quantdock.layers import LinearBase, MergedStore, MergedView
from quantdock.layers.fused_moe import FusedMoE
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.numerics import CanonicalWeight, cut_rows
from quantdock.schemes import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLayer:
    """One layer of a checkpoint to be.

    Attributes:
        name: before the names of its tensors, as transformers saves them. prefix: in the file it
            was loaded from.
        restore: returns the weight as that file has it.
        bias: where the model holds it together with those of other layers.
    """

    name: str
    prefix: str
    scheme: Scheme
    restore: Callable[[], CanonicalWeight]
    bias: Tensor | None = None


def saved_layers(model: Any) -> Iterator[SavedLayer]:
    """Yield the quantized layers of ``model``."""
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(module, MergedView):
            yield SavedLayer(
                name=name,
                prefix=module.facts.prefix,
                scheme=module.quant_method.problem.scheme,
                restore=module.restore,
                bias=None if module.bias is None else module.bias.clone(),
            )
        elif isinstance(module, LinearBase) and isinstance(method, QuantizedLinearMethod):
            yield SavedLayer(
                name=name,
                prefix=module.facts.prefix,
                scheme=method.problem.scheme,  # as the stored values showed it
                restore=partial(method.restore, module),
            )
        elif isinstance(module, FusedMoE) and isinstance(method, QuantizedExpertsMethod):
            yield from _experts(module, method)


def plain_tensors(model: Any) -> dict[str, Tensor]:
    """Return the tensors of ``model`` that files store as they are."""
    tensors: dict[str, Tensor] = model.state_dict()
    for name, module in model.named_modules():
        for last in _layout(module):
            tensors.pop(f"{name}.{last}", None)
        if isinstance(module, FusedMoE):
            for last, usual in bias_names(module.shape.w13_order):
                bias = tensors.pop(f"{name}.{last}", None)
                if bias is not None and not _is_apart(module):
                    tensors[f"{name}.{usual}"] = bias
    return tensors


def _is_apart(module: FusedMoE) -> bool:
    """Return whether gate and up are stored apart, and their biases with them."""
    return len(module.shape.w13_sizes) > 1


def _layout(module: Any) -> tuple[str, ...]:
    """Return the names of the tensors of ``module`` that are in a kernel's layout."""
    method = getattr(module, "quant_method", None)
    if isinstance(module, MergedStore):
        return tuple(module._parameters)
    if isinstance(method, QuantizedExpertsMethod):
        return method.frozen_names(module)
    if isinstance(module, LinearBase) and isinstance(method, QuantizedLinearMethod):
        return method.names
    return ()


def _experts(module: FusedMoE, method: QuantizedExpertsMethod) -> Iterator[SavedLayer]:
    """Yield w13, shard by shard, and w2 of each expert, by their names in the file."""
    for expert in range(method.num_experts):
        for place, matrix in enumerate(method.matrices):
            start = 0
            for facts, size in zip(matrix.facts[expert], matrix.sizes, strict=True):
                rows = range(start, start + size)
                yield SavedLayer(
                    name=facts.prefix,
                    prefix=facts.prefix,
                    scheme=matrix.scheme,
                    restore=partial(_rows_of_expert, module, method, expert, place, rows),
                    bias=_bias_of_expert(module, f"{matrix.name}_bias", expert, rows),
                )
                start += size


def _bias_of_expert(module: FusedMoE, name: str, expert: int, rows: range) -> Tensor | None:
    """Return the bias that is saved beside the weight that has ``rows`` of one expert's."""
    bias = module._parameters.get(name)
    if bias is None or not _is_apart(module):
        return None
    return bias[expert, rows.start : rows.stop].clone()


def _rows_of_expert(
    module: FusedMoE, method: QuantizedExpertsMethod, expert: int, place: int, rows: range
) -> CanonicalWeight:
    return cut_rows(method.restore(module, expert)[place], rows.start, rows.stop)
