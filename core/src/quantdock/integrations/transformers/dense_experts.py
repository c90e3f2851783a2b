"""All experts in one tensor, as a class or our layer has them, from whatever files store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.configs.stored import HEADERS
from quantdock.errors import LoadError
from quantdock.methods.expert_shape import ExpertShape
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import LayerFacts

# Returns the plain tensor of a name, after checking that it has a shape.
Read = Callable[[str, tuple[int, ...]], Tensor]
# Parameters of transformers' classes of experts; up_proj is of those without a gate.
W13 = frozenset({"gate_up_proj", "up_proj", "gate_up_proj_bias", "up_proj_bias"})
W2 = frozenset({"down_proj", "down_proj_bias"})
_OF_W2 = W2 | {"w2_bias"}  # our layer's, too


def is_bias(parameter: str) -> bool:
    """Return whether a parameter of experts is the bias of all of them."""
    return parameter.endswith("_bias")


def bias_sources(parameter: str, experts: Sequence[ExpertFacts]) -> list[str]:
    """Return the names that files have for the parts of ``parameter``, a bias of all experts."""
    return [f"{facts.prefix}.bias" for shards in _shards(parameter, experts) for facts in shards]


def stack_experts(
    module: Any, parameter: str, experts: Sequence[ExpertFacts], read: Read
) -> Tensor:
    """Return ``parameter`` of ``module`` as its class has it: [E, N, K], [E, K, N] or [E, N].

    Args:
        parameter: of W13 or W2. read: for weights [N, K] and biases [N].
    Raises:
        LoadError: one has another shape than its place.
    """
    declared = module._parameters[parameter]
    last = "bias" if is_bias(parameter) else "weight"
    turned = last == "weight" and module.is_transposed
    shape = tuple(declared.shape[1:][::-1] if turned else declared.shape[1:])
    parts = [_read(shards, last, shape, read) for shards in _shards(parameter, experts)]
    is_concatenated = getattr(module, "is_concatenated", True)
    rows = [torch.cat(part) if is_concatenated else _interleaved(part) for part in parts]
    stacked = torch.stack(rows)
    return stacked.transpose(1, 2).contiguous() if turned else stacked


def require_alike(
    parameter: str, experts: Sequence[ExpertFacts], config: QuantizationConfig
) -> None:
    """Refuse experts that ``config`` decodes in different tiles, as their scales alone show.

    Each would be decoded by itself, and a scale that was cut would pass for one of a larger tile.

    Raises:
        LoadError: names one expert of each kind.
    """
    kinds: dict[str, dict[str, str]] = defaultdict(dict)  # element -> spec -> the first so stored
    for facts in (facts for shards in _shards(parameter, experts) for facts in shards):
        decision = config.scheme_for(facts)
        if decision.scheme is not None and decision.source == HEADERS:
            spec = decision.scheme.weight
            kinds[spec.element].setdefault(str(spec), facts.prefix)
    for found in kinds.values():
        if len(found) > 1:
            raise LoadError(
                "The experts of one layer have different scales.",
                why=[f"{prefix} is stored as {spec}" for spec, prefix in found.items()],
                todo="Download the checkpoint again: nothing else says that they differ.",
                names=tuple(found.values()),
            )


def stack_biases(
    parameter: str,
    experts: Sequence[ExpertFacts],
    shape: ExpertShape,
    read: Read,
    in_turns: str = "",
) -> Tensor:
    """Return ``w13_bias`` [E, 2I] or ``w2_bias`` [E, H] of our layer, rows as its weight has them.

    Args:
        in_turns: a tensor [E, 2I] where rows of gate and up take turns, though the weights lie
            apart; empty: each weight has its own.
    Raises:
        LoadError: a bias has another shape than its weight has rows.
    """
    rows = (shape.hidden_size if parameter == "w2_bias" else sum(shape.w13_sizes),)
    if in_turns:
        whole = read(in_turns, (len(experts), *rows))
        return torch.cat((whole[:, ::2], whole[:, 1::2]), dim=1)
    parts = [_read(shards, "bias", rows, read) for shards in _shards(parameter, experts)]
    return torch.stack([torch.cat(part) for part in parts])


def _shards(parameter: str, experts: Sequence[ExpertFacts]) -> list[tuple[LayerFacts, ...]]:
    """Return the shards of w13 or w2 of each expert, whichever ``parameter`` is of."""
    return [expert.w2 if parameter in _OF_W2 else expert.w13 for expert in experts]


def _read(
    shards: Sequence[LayerFacts],
    last: str,
    shape: tuple[int, ...],
    read: Read,
) -> list[Tensor]:
    """Return what is stored of each of ``shards``, equal parts of ``shape``."""
    wanted = (shape[0] // len(shards), *shape[1:])
    return [read(f"{facts.prefix}.{last}", wanted) for facts in shards]


def _interleaved(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of ``parts`` in turns: the first of each, then the second of each."""
    return torch.stack(list(parts), dim=1).flatten(0, 1)
