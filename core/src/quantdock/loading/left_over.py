"""Tensors that nothing has read, beside layers that were built: an error, or nothing to lose.

Tensors of modules that were not built may stay unread; the plan lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches

from quantdock.checkpoint.quantization_tensors import is_quantization_tensor, looks_quantized
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.errors import LoadError, few
from quantdock.formats import DTYPES
from quantdock.loading.sources import Sources

_BIAS = re.compile(r"(?:.*_)?bias")


def require_codes_read(sources: Sources, built: Iterable[str]) -> None:
    """Refuse quantization tensors that lie beside a layer of ``built`` and were not read.

    Raises:
        LoadError: names tensor, layer and the nearest name that layers take.
    """
    _refuse(_beside(sources.left_over(), sources, set(built), is_quantization_tensor))


def require_none_left(
    sources: Sources, built: Iterable[str], experts: Iterable[str] = (), known: Iterable[str] = ()
) -> None:
    """Refuse what nothing has read of layers that were built, where it may change what they give.

    Those are scales, zero points and codes by any name; whatever lies below experts; and biases,
    unless they are zero: AutoGPTQ stores such for layers that have none.

    Args:
        built: the prefixes of layers. experts: those of modules of routed experts.
        known: regular expressions for tensors that the model's class leaves unread.
    Raises:
        LoadError: names the tensors.
    """
    patterns, prefixes, below = [re.compile(k) for k in known], set(built), _Below(experts)
    unread = [n for n in sources.left_over() if not any(p.search(n) for p in patterns)]
    biases = [name for name in unread if _is_bias(name, sources, prefixes, below)]
    lost = _beside(unread, sources, prefixes, looks_quantized)
    lost += [name for name in unread if name in below and name not in biases]
    _refuse([*dict.fromkeys(lost)])
    _require_zero(biases, sources)


class _Below:
    """Names that begin with one of ``prefixes``, in whole components."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._starts = tuple(f"{prefix}." for prefix in prefixes)

    def __contains__(self, name: str) -> bool:
        return name.startswith(self._starts)


def _beside(
    unread: Iterable[str],
    sources: Sources,
    prefixes: Collection[str],
    is_meant: Callable[[str, str], bool],
) -> list[str]:
    """Return those of ``unread`` that lie beside a layer and are what is meant."""
    return [
        name
        for name in unread
        if name.rpartition(".")[0] in prefixes
        and is_meant(name, sources.tensors[name].dtype)
        and not is_kv_scale(name)
    ]


def _is_bias(name: str, sources: Sources, prefixes: Collection[str], below: _Below) -> bool:
    prefix, _, last = name.rpartition(".")
    entry = sources.tensors[name]
    if not _BIAS.fullmatch(last) or not DTYPES[entry.dtype].floating:
        return False
    return name in below or prefix in prefixes


def _refuse(names: list[str]) -> None:
    if names:
        more = [f"and {len(names) - 8} more"] if len(names) > 8 else []
        raise LoadError(
            "Tensors of the checkpoint belong to layers that were built and were not used.",
            why=[*map(_describe, names[:8]), *more],
            todo="Its method is not the one it says, or they do not belong to the model; see "
            "`quantdock explain`.",
            names=tuple(names),
        )


def _describe(name: str) -> str:
    prefix, _, last = name.rpartition(".")
    near = get_close_matches(last, ["weight", "weight_scale", "weight_scale_inv", "input_scale"], 1)
    hint = f"; the nearest name that layers take is {near[0]}" if near else ""
    return f"{name} (layer {prefix}){hint}"


def _require_zero(biases: list[str], sources: Sources) -> None:
    """Account for ``biases`` that are zero; refuse others."""
    lost = [name for name in biases if bool(sources.read(name).any())]
    if lost:
        raise LoadError(
            "The checkpoint has biases for layers that are built without one.",
            why=[f"{len(lost)} that are not zero: {few(lost, 8)}"],
            todo="Set the field of config.json that gives these layers a bias (attention_bias, "
            "mlp_bias), or load the weights that belong to this config.json.",
            names=tuple(lost),
        )
