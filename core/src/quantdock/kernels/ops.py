"""Kernels as torch operators, so that torch.compile and fake tensors see one opaque call.

The low-level form (define, impl, register_fake) costs a few microseconds a call less than
``torch.library.custom_op``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# A library takes its operators with it when it is freed, so a reloaded module keeps the one it had.
_LIBRARY: torch.library.Library = globals().get("_LIBRARY") or torch.library.Library(
    "quantdock", "FRAGMENT"
)  # type: ignore[no-untyped-call]


def define(
    name: str, signature: str, run: Callable[..., object], fake: Callable[..., object]
) -> None:
    """Register ``quantdock::name``; doing so again, as a reloaded module does, changes nothing.

    Args:
        signature: the schema behind the name, such as "(Tensor x) -> Tensor".
        run: computes it, on any device; it has no gradient, and torch says so at a backward pass.
        fake: returns a result of the right shape and dtype without values.
    """
    if hasattr(torch.ops.quantdock, name):
        return
    _LIBRARY.define(name + signature)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, torch.no_grad()(run), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"quantdock::{name}", fake, lib=_LIBRARY)
