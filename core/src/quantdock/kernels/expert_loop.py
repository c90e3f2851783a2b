"""Experts one after another, each matrix through a linear kernel.

Tokens are sorted by expert, so that every kernel is called once for each expert that has any. This
runs on every device and with every scheme that a linear kernel takes. A kernel of kind "experts",
which runs all of them at once, has the same four steps and takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from quantdock.errors import FormatError

if TYPE_CHECKING:
    from quantdock.numerics.canonical import CanonicalWeight

W13, W2 = "w13_", "w2_"
GATED = 256  # rows that go through the gate in one call: its calls cost more than few rows do
_Turn = tuple[int, int, int]  # an expert, and where its tokens begin and end once sorted


class ExpertKernel(Protocol):
    """The steps of every kernel that runs the experts of a layer.

    Tensors are those that ``prepare`` makes of one expert; ``apply`` gets them stacked, [E, ...],
    and the biases beside them: ``w13_bias`` [E, N] and ``w2_bias`` [E, H], where experts have any.
    """

    def prepare(self, w13: CanonicalWeight, w2: CanonicalWeight) -> dict[str, Tensor]:
        """Return one expert's weights as named tensors, alike for every expert."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> tuple[CanonicalWeight, CanonicalWeight]:
        """Return what ``prepare`` got, from the tensors of one expert."""
        ...

    def apply(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum of each token's experts, each multiplied by its routing weight.

        An id of E stands for an expert that another rank holds; it adds nothing.

        Shapes:
            x: [T, H]. topk_ids: int [T, k]. topk_weights: [T, k]. Returns [T, H] in x's dtype.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoop:
    """Runs w13 and w2 of each expert by a linear kernel each.

    ``gate`` takes what w13 returns, [t, 2I], and returns what w2 takes, [t, I].
    """

    w13: Any
    w2: Any
    gate: Callable[[Tensor], Tensor]
    num_experts: int

    @property
    def optional(self) -> dict[str, float]:
        """Return the tensors that some experts may lack, and what means the same as none."""
        return {
            prefix + name: value
            for prefix, kernel in ((W13, self.w13), (W2, self.w2))
            for name, value in getattr(kernel, "optional", {}).items()
        }

    def prepare(self, w13: CanonicalWeight, w2: CanonicalWeight) -> dict[str, Tensor]:
        """Return the tensors of both kernels, as ``w13_...`` and ``w2_...``."""
        made = ((W13, _alike(self.w13, w13)), (W2, _alike(self.w2, w2)))
        return {prefix + name: t for prefix, tensors in made for name, t in tensors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> tuple[CanonicalWeight, CanonicalWeight]:
        """Return w13 and w2 of one expert."""
        return self.w13.restore(_under(W13, tensors)), self.w2.restore(_under(W2, tensors))

    def apply(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum of each token's experts [T, H], in x's dtype; see ExpertKernel.

        Raises:
            FormatError: an id is no expert's.
        """
        return self._sum(tensors, x, topk_weights, topk_ids, self.w2.apply).to(x.dtype)

    def apply_partial(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum in f32, not rounded: a sum over ranks is rounded once."""

        def widened(tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
            wide = bias if bias is None else bias.float()
            result: Tensor = self.w2.apply(tensors, x.float(), wide)
            return result

        w2 = widened if hasattr(self.w2, "apply_partial") else self.w2.apply
        return self._sum(tensors, x, topk_weights, topk_ids, w2).float()

    def _sum(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        w2: Callable[..., Tensor],
    ) -> Tensor:
        num_tokens, k = topk_ids.shape
        sent = topk_ids.reshape(-1)
        batches = list(_batches(_turns(sent, self.num_experts)))
        order = sent.argsort(stable=True)
        rows = x.index_select(0, order // k)
        own13, own2 = _unstacked(W13, tensors), _unstacked(W2, tensors)
        parts = []
        for batch in batches:
            up = [self.w13.apply(*_around(own13(e), rows[start:stop])) for e, start, stop in batch]
            hidden = self.gate(up[0] if len(up) == 1 else torch.cat(up))
            sizes = [stop - start for _, start, stop in batch]
            pieces = zip(batch, torch.split(hidden, sizes), strict=True)
            parts += [w2(*_around(own2(e), piece)) for (e, _, _), piece in pieces]
        if missing := len(order) - sum(len(part) for part in parts):  # sent to other ranks
            parts.append(x.new_zeros((missing, x.shape[1])))
        results = torch.cat(parts) if parts else rows
        results = results * topk_weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return results.index_select(0, back).view(num_tokens, k, x.shape[1]).sum(dim=1)


def _alike(kernel: Any, weight: CanonicalWeight) -> dict[str, Tensor]:
    """Return a weight's tensors, of the dtypes that those of every expert have."""
    tensors: dict[str, Tensor] = kernel.prepare(weight)
    alike = getattr(kernel, "alike", None)
    return tensors if alike is None else alike(tensors)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _unstacked(
    prefix: str, tensors: Mapping[str, Tensor]
) -> Callable[[int], tuple[dict[str, Tensor], Tensor | None]]:
    """Return what gives the tensors, and the bias, of one expert's matrix."""
    own = _under(prefix, tensors)
    bias = own.pop("bias", None)
    return lambda expert: (
        {name: tensor[expert] for name, tensor in own.items()},
        None if bias is None else bias[expert],
    )


def _around(
    own: tuple[dict[str, Tensor], Tensor | None], x: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    tensors, bias = own
    return tensors, x, bias


def _batches(turns: Iterator[_Turn]) -> Iterator[list[_Turn]]:
    """Yield experts in batches of about GATED rows."""
    batch: list[_Turn] = []
    for turn in turns:
        batch.append(turn)
        if turn[2] - batch[0][1] >= GATED:
            yield batch
            batch = []
    if batch:
        yield batch


def _turns(sent: Tensor, num_experts: int) -> Iterator[_Turn]:
    """Yield each expert that has tokens, and where they begin and end once sorted."""
    counts = torch.bincount(sent, minlength=num_experts + 1).tolist()
    if len(counts) > num_experts + 1:
        raise FormatError(
            f"A token was sent to expert {len(counts) - 1}.",
            why=[f"the layer has experts 0 to {num_experts - 1}; {num_experts} stands for none"],
            todo="Check the router.",
        )
    start = 0
    for expert, count in enumerate(counts[:num_experts]):
        if count:
            yield expert, start, start + count
        start += count
