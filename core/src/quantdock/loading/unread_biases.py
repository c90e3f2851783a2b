"""Biases of layers that have none: AutoGPTQ stores one for every layer, of zeros."""

from __future__ import annotations

from collections.abc import Iterable

from quantdock.errors import LoadError, few
from quantdock.formats import DTYPES
from quantdock.loading.sources import Sources


def require_no_lost_bias(sources: Sources, built: Iterable[str]) -> None:
    """Account for unread biases of ``built`` layers that are zero; refuse others.

    Raises:
        LoadError: a bias changes what its layer gives, and the model has no place for it.
    """
    prefixes = set(built)
    unread = [
        name
        for name in sources.left_over()
        if name.endswith(".bias")
        and name.removesuffix(".bias") in prefixes
        and len(sources.tensors[name].shape) == 1
        and DTYPES[sources.tensors[name].dtype].floating
    ]
    lost = [name for name in unread if bool(sources.read(name).any())]
    if lost:
        raise LoadError(
            "The checkpoint has biases for layers that are built without one.",
            why=[f"{len(lost)} that are not zero: {few(lost, 8)}"],
            todo="Set the field of config.json that gives these layers a bias (attention_bias, "
            "mlp_bias), or load the weights that belong to this config.json.",
            names=tuple(lost),
        )
