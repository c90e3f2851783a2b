"""Tied weights: a head that shares the embedding, and what the file says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantdock.checkpoint.model_facts import is_tied
from quantdock.errors import LoadError


def tie(
    model: Any, missing: list[str], raw_config: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Tie what the config ties; return (tensors still missing, warnings).

    A head that a tied model's file stores too is compared: equal, it is shared; different or
    quantized, both are kept as stored, with a warning.
    """
    warnings = []
    absent = set(missing)
    for target, source in list(model.all_tied_weights_keys.items()):
        if target in absent or source in absent:
            continue
        if difference := _difference(model.get_parameter(target), model.get_parameter(source)):
            warnings.append(
                f"config.json ties {target} to {source}, and the file stores {difference}: "
                f"both are used as stored"
            )
            model.all_tied_weights_keys.pop(target)
    head = _head_name(model)
    if head in absent and is_tied(raw_config) is None and not model.all_tied_weights_keys:
        warnings.append(
            f"the file has no {head} and config.json does not say whether it is tied: "
            "the input embedding is used"
        )
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
        absent.discard(head)
    model.tie_weights(missing_keys=absent, recompute_mapping=False)
    return [name for name in missing if name in absent], warnings


def _difference(target: torch.Tensor, source: torch.Tensor) -> str:
    """Return how the two differ; empty where one can stand for the other."""
    if target.dtype.itemsize == 1:  # codes
        return "the first quantized"
    return "" if torch.equal(target, source) else "two that differ"


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    found = next((name for name, module in model.named_modules() if module is head), None)
    return f"{found}.weight" if found else ""


def require_complete(missing: list[str]) -> None:
    """Raise where tensors of the model are in no file.

    Raises:
        LoadError: lists the first of them and counts the rest.
    """
    if missing:
        more = [f"and {len(missing) - 10} more"] if len(missing) > 10 else []
        raise LoadError(
            f"{len(missing)} tensors of the model are in no file of the checkpoint.",
            why=[*missing[:10], *more],
            todo="The checkpoint is incomplete or belongs to another config.json.",
            names=tuple(missing),
        )
