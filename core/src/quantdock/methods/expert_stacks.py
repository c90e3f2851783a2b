"""The tensors of one expert among those of all, stacked [E, ...] under the kernel's names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def misfit(
    stacks: Mapping[str, Tensor], tensors: Mapping[str, Tensor], optional: Mapping[str, float]
) -> str:
    """Return why ``tensors`` do not fit into ``stacks``; empty where they do.

    Args:
        optional: tensors that some experts may lack, and what means the same as none.
    """
    for name in dict.fromkeys((*stacks, *tensors)):
        stack, tensor = stacks.get(name), tensors.get(name)
        if stack is None or tensor is None:
            if name not in optional:
                return f"{name} is there for some experts only"
        elif stack.shape[1:] != tensor.shape or stack.dtype != tensor.dtype:
            return f"its {name} has shape {list(tensor.shape)}, that of others " + str(
                list(stack.shape[1:])
            )
    return ""


def write_expert(
    stacks: Mapping[str, Tensor],
    expert: int,
    tensors: Mapping[str, Tensor],
    optional: Mapping[str, float],
) -> None:
    """Write ``tensors``, which fit, into the place of ``expert``."""
    for name, stack in stacks.items():
        if name in tensors:
            stack[expert].copy_(tensors[name])
        else:
            stack[expert].fill_(optional[name])
