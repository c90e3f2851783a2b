"""The embedding and the head, whose vocabulary is divided among ranks.

The last rank may hold fewer words than the others. No word is made up to fill it: where logits
need equal widths, the missing ones are -inf, and they are cropped once gathered.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quantdock.errors import LoadError
from quantdock.kernels.quantized_input import QuantizedInput
from quantdock.layers.linear import LinearBase
from quantdock.layers.options import LinearOptions
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division, require_shardable
from quantdock.methods.cut import Cut, Part
from quantdock.methods.pending import attach_loader
from quantdock.schemes import Kind


class VocabParallelEmbedding(nn.Embedding):
    """An unquantized embedding [V, K] of which each rank holds some words.

    Args:
        num_embeddings: V. embedding_dim: K.
        group: the ranks. Without a process group each rank returns zeros for others' words.
    Raises:
        ConfigError: there are not enough words for all ranks.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        params_dtype: torch.dtype | None = None,
        prefix: str = "",
        group: ParallelGroup = ALONE,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        self.cuts = (_cut(prefix or type(self).__name__, num_embeddings, embedding_dim, group),)
        self.group = group
        self._first, self._count = self.cuts[0].rows.start, len(self.cuts[0].rows)
        dtype = params_dtype or torch.get_default_dtype()
        weight = torch.empty(self._count, embedding_dim, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        attach_loader(self.weight, partial(_load_words, self.part("weight")))

    def part(self, name: str) -> Part:
        """Return which part of the file's tensor the parameter holds."""
        return self.cuts[0].part(2)

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., K] for word numbers [...]."""
        if self.group.size == 1:
            return F.embedding(input, self.weight)
        own = input - self._first
        is_missing = (own < 0) | (own >= self._count)
        found = F.embedding(own.masked_fill(is_missing, 0), self.weight)
        return self.group.all_reduce(found.masked_fill(is_missing[..., None], 0.0))


class ParallelLMHead(LinearBase):
    """The head [V, K] that gives logits of all words, each rank's being gathered.

    Without a process group each rank returns its own logits, -inf where it has fewer words than
    the first rank.

    Raises:
        ConfigError: there are not enough words for all ranks.
    """

    kind: ClassVar[Kind] = "head"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        *,
        group: ParallelGroup = ALONE,
        **options: Unpack[LinearOptions],
    ) -> None:
        name = options.get("prefix") or type(self).__name__
        cut = _cut(name, num_embeddings, embedding_dim, group)
        super().__init__(embedding_dim, num_embeddings, bias, cuts=[cut], **options)
        self.group = group
        self.num_embeddings = num_embeddings
        self._missing = -(-num_embeddings // group.size) - len(cut.rows)

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return the logits [..., V] of all words for ``input`` [..., K]."""
        logits = super().forward(input)
        if self.group.size == 1:
            return logits
        if self._missing:
            logits = F.pad(logits, (0, self._missing), value=-torch.inf)
        return self.group.all_gather(logits)[..., : self.num_embeddings]


def _cut(name: str, n: int, k: int, group: ParallelGroup) -> Cut:
    """Return the words of this rank."""
    division = Division(name=name, size=n, is_ragged=True)
    require_shardable([division], group.size, name)
    return Cut(n=n, k=k, rows=division.part(group.rank, group.size), columns=range(k))


def _load_words(part: Part, parameter: Tensor, loaded: Tensor, shard: int = 0) -> None:
    """Copy what a rank keeps of ``loaded`` [V, K], the whole embedding."""
    if tuple(loaded.shape) != part.shape:
        raise LoadError(
            f"The embedding has shape {list(loaded.shape)} in the checkpoint.",
            why=[f"the layer is built for {list(part.shape)}"],
            todo="Load the checkpoint that belongs to this model's config.",
        )
    parameter.data.copy_(loaded[part.region])
