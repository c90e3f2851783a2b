"""One forward pass of a model that is watched: where numbers end, and where it stops.

Hooks see the activations of every module while they exist; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quantdock.layers import FusedMoE

Watcher = Callable[[str, nn.Module, tuple[Any, ...], Tensor], None]  # name, module, inputs, output


@dataclass(slots=True)
class Run:
    """What one forward pass came to.

    ``bad`` is the first module that made NaN or infinity, innermost first, and ``bad_kind`` which;
    ``stopped_in`` the module that raised ``error``.
    """

    logits: Tensor | None = None
    bad: str = ""
    bad_kind: str = ""
    bad_input: str = ""  # "NaN" or "infinity" where its inputs had it already
    bad_op: str = ""
    error: Exception | None = None
    stopped_in: str = ""
    inside: list[str] = field(default_factory=list)


@torch.no_grad()
def run_forward(model: Any, ids: Tensor, watch: Watcher) -> Run:
    """Return what ``model`` made of token ``ids`` [1, T].

    ``watch`` is called for each linear layer, and for all experts of a layer together.
    """
    run = Run()
    handles = [
        handle
        for name, module in model.named_modules()
        for handle in _hooks(run, name, module, watch)
    ]
    try:
        output = model(input_ids=ids, use_cache=False)
        run.logits = getattr(output, "logits", None)
    except Exception as error:
        run.error, run.stopped_in = error, run.inside[-1] if run.inside else ""
    finally:
        for handle in handles:
            handle.remove()
    return run


def _hooks(run: Run, name: str, module: nn.Module, watch: Watcher) -> Iterator[Any]:
    def enter(module: nn.Module, args: Any) -> None:
        run.inside.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, nn.Linear | FusedMoE) and isinstance(output, Tensor):
            watch(name, module, args, output)
        run.inside.pop()
        if not run.bad and (kind := _not_finite(output)):
            run.bad, run.bad_kind, run.bad_input = name, kind, _not_finite(args)
            run.bad_op = _op(module)

    yield module.register_forward_pre_hook(enter)
    yield module.register_forward_hook(leave)


def _op(module: nn.Module) -> str:
    """Return what the module computes: its class, and the kernel of a quantized layer."""
    selection = getattr(getattr(module, "quant_method", None), "selection", None)
    kernel = f", kernel {selection.kernel.name}" if selection else ""
    return f"{type(module).__name__}{kernel}"


def _not_finite(values: Any) -> str:
    """Return "NaN" or "infinity" where a tensor among ``values`` has it, else nothing."""
    for tensor in _tensors(values):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return "NaN" if bool(tensor.isnan().any()) else "infinity"
    return ""


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
