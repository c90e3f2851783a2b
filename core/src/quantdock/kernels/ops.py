"""Kernels as torch operators, so that torch.compile and fake tensors see one opaque call.

The low-level form (define, impl, register_fake) costs a few microseconds a call less than
``torch.library.custom_op``. A formula for gradients would cost as much again at every call, with or
without gradients, so it belongs to a second operator, which is called only where one is wanted.
Where nothing looks at the call, torch's dispatcher is left out: it takes as long as a small layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

# Each call of a layer asks these; looked up once, they take a quarter less.
_is_grad_enabled = torch.is_grad_enabled
_num_modes = torch._C._len_torch_dispatch_stack
_transform, _tracing = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
# A library takes its operators with it when it is freed, so a reloaded module keeps the one it had.
_LIBRARY: torch.library.Library = globals().get("_LIBRARY") or torch.library.Library(
    "quantdock", "FRAGMENT"
)  # type: ignore[no-untyped-call]


def define(
    name: str,
    signature: str,
    run: Callable[..., Tensor],
    fake: Callable[..., Tensor],
    gradient: Callable[..., Tensor],
) -> Callable[..., Tensor]:
    """Register ``quantdock::name`` and return what calls it, with gradients of x and of the bias.

    Registering again, as a reloaded module does, changes nothing.

    Args:
        signature: the schema behind the name: "(Tensor x, ...) -> Tensor"; a bias is called "bias".
        run: computes it, on any device.
        fake: returns a result of the right shape and dtype without values.
        gradient: gets the gradient of the result [..., N] in place of x, then the other arguments;
            returns that of x [..., K].
    """
    if not hasattr(torch.ops.quantdock, name):
        trained, backward = f"{name}_trained", f"{name}_gradient"
        _register(name, signature, run, fake)
        _register(trained, signature, run, fake)
        _register(
            backward,
            signature.replace("(Tensor x", "(Tensor gradient, SymInt columns", 1),
            lambda given, columns, *others: gradient(given, *others),
            lambda given, columns, *others: given.new_empty((*given.shape[:-1], columns)),
        )
        _differentiate(trained, getattr(torch.ops.quantdock, backward))
    return _caller(name, run)


def define_without_gradient(
    name: str, signature: str, run: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Register ``quantdock::name``, which is called with tensors that want no gradient.

    Args: as for ``define``; results may be several tensors.
    """
    if not hasattr(torch.ops.quantdock, name):
        _register(name, signature, run, fake)
    plain: Callable[..., Any] = getattr(torch.ops.quantdock, name)
    return plain


def _register(name: str, signature: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _LIBRARY.define(name + signature)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, torch.no_grad()(run), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"quantdock::{name}", fake, lib=_LIBRARY)


def _caller(name: str, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what calls ``quantdock::name``, its twin where a gradient is wanted, or ``run``."""
    plain, trained = (getattr(torch.ops.quantdock, n) for n in (name, f"{name}_trained"))
    bias_at = _bias_at(plain)

    def call(*given: Any) -> Tensor:
        if is_unseen(given[0]):
            return run(*given)
        if torch.is_grad_enabled():
            bias = None if bias_at is None else given[bias_at]
            if given[0].requires_grad or (bias is not None and bias.requires_grad):
                result: Tensor = trained(*given)
                return result
        result = plain(*given)
        return result

    return call


def is_unseen(x: Tensor) -> bool:
    """Return whether nobody would notice an operator that is called with ``x``.

    That is so without gradients, compilers, modes and transforms, for a tensor with values.
    """
    return (
        not is_dynamo_compiling()
        and type(x) is Tensor
        and not _is_grad_enabled()
        and not x.is_meta
        and _num_modes() == 0
        and _transform() is None
        and _tracing() is None
    )


def _bias_at(operator: Any) -> int | None:
    names = [argument.name for argument in operator.default._schema.arguments]
    return names.index("bias") if "bias" in names else None


def _differentiate(name: str, gradient: Callable[..., Tensor]) -> None:
    """Give ``quantdock::name`` the gradients of its x and its bias; weights are frozen."""
    bias_at = _bias_at(getattr(torch.ops.quantdock, name))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *others = inputs
        leaves, ctx.tree = pytree.tree_flatten(others)
        ctx.save_for_backward(*(t if isinstance(t, Tensor) else None for t in leaves))
        ctx.leaves = [None if isinstance(t, Tensor) else t for t in leaves]
        ctx.columns, ctx.dtype = x.shape[-1], x.dtype

    def backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
        leaves = [
            kept if saved is None else saved
            for kept, saved in zip(ctx.leaves, ctx.saved_tensors, strict=True)
        ]
        others = pytree.tree_unflatten(leaves, ctx.tree)
        results: list[Any] = [None, *map(_no_gradient, others)]
        needs = ctx.needs_input_grad
        if needs[0]:
            results[0] = gradient(given, ctx.columns, *others).to(ctx.dtype)
        if bias_at is not None and needs[bias_at]:
            bias = others[bias_at - 1]
            results[bias_at] = given.sum_to_size(bias.shape).to(bias.dtype)
        return tuple(results)

    torch.library.register_autograd(
        f"quantdock::{name}", backward, setup_context=keep, lib=_LIBRARY
    )


def _no_gradient(argument: object) -> list[None] | None:
    """Return none in the form that torch wants: one for each of a list of tensors alone."""
    if isinstance(argument, list) and all(isinstance(each, Tensor) for each in argument):
        return [None] * len(argument)
    return None
