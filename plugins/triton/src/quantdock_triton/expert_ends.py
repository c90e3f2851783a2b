"""What a kernel of experts may do with its product besides: see ``expert_end_kernel``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quantdock_triton.launcher import is_aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What makes of w13's product what w2 takes: a name and an order, as ``gated`` takes them.

    Attributes:
        is_rounded: the name is "silu", and each of its steps is rounded.
    """

    name: str
    order: str
    is_rounded: bool = False

    @property
    def constants(self) -> tuple[str, str]:
        """Return NAME and ORDER of kernels."""
        return self.name + ", rounded" * self.is_rounded, self.order


NO_GATE = Gate(name="", order="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Where the weighted sum of each token's pairs goes, whose products are w2's.

    Shapes:
        result: [T, N]. weights: float [T, k], contiguous. counters: int32, 0, of this stream alone,
        one for each token and tile of columns.
    """

    result: Tensor
    weights: Tensor
    counters: Tensor

    @property
    def top_k(self) -> int:
        """Return how many pairs a token has."""
        return self.weights.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of kernels."""
        return self.weights, self.result, self.counters

    @property
    def key(self) -> tuple[object, ...]:
        """Return what a compiled kernel depends on."""
        aligned = map(is_aligned, self.tensors)
        return self.top_k, self.weights.dtype, self.result.dtype, *aligned


def arguments_of(sums: Sums | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return weights, sums and counters for a kernel."""
    return (None, None, None) if sums is None else sums.tensors
