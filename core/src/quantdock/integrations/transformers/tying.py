"""Tied weights: a head that shares the embedding, and what the file says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from quantdock.checkpoint.model_facts import is_tied
from quantdock.errors import LoadError
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.plan.grouping import collapse

_SHOWN = 10  # names in the text of an error
_LAST_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)(?!.*\.\d+\.)")


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
        if difference := _difference(model, target, source):
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


def _difference(model: Any, target: str, source: str) -> str:
    """Return how the two differ; empty where one can stand for the other."""
    layer = model.get_submodule(target.rpartition(".")[0])
    if isinstance(getattr(layer, "quant_method", None), QuantizedLinearMethod):
        return "the first quantized"
    is_equal = torch.equal(model.get_parameter(target), model.get_parameter(source))
    return "" if is_equal else "two that differ"


def shared_names(model: Any) -> dict[str, str]:
    """Return the tensors of a loaded model that are another one too, and that one's name."""
    shared = dict(model.all_tied_weights_keys)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        shared.setdefault(_weight_name(model, head), _weight_name(model, embedding))
    return shared


def _head_name(model: Any) -> str:
    return _weight_name(model, model.get_output_embeddings())


def _weight_name(model: Any, wanted: Any) -> str:
    found = next((name for name, module in model.named_modules() if module is wanted), None)
    return f"{found}.weight" if found else ""


def require_complete(missing: list[str]) -> None:
    """Raise where tensors of the model are in no file.

    Raises:
        LoadError: lists the first of them and counts the rest.
    """
    if missing:
        shown = missing if len(missing) <= _SHOWN else _by_last_number(missing)
        more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        count = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
        are = "is" if len(missing) == 1 else "are"
        raise LoadError(
            f"{count} of the model {are} in no file of the checkpoint.",
            why=[*shown[:_SHOWN], *more],
            todo="The checkpoint is incomplete or belongs to another config.json.",
            names=tuple(missing),
        )


def _by_last_number(names: list[str]) -> list[str]:
    """Return the names, those that differ in their last number (the expert's) as one pattern."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        alike.setdefault(tuple(_LAST_NUMBER.split(name)), []).append(name)
    return [collapse(members) for members in alike.values()]
