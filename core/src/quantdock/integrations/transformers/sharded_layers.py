"""The layer that stands for a rank's part of one of the model's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from quantdock.config import QuantizationConfig
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.integrations.transformers.sharding import Shard, Way
from quantdock.layers import (
    ColumnParallelLinear,
    ParallelGroup,
    ParallelLMHead,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from quantdock.layers.options import LinearOptions


def make_part(
    layer: FoundLayer,
    shard: Shard,
    config: QuantizationConfig | None,
    dtype: torch.dtype,
    group: ParallelGroup,
) -> nn.Module:
    """Return the rank's part of ``layer``, on the meta device; ``config`` None: unquantized.

    Raises:
        NoKernelError: no kernel may run it.
    """
    module: Any = layer.module
    options: LinearOptions = {
        "params_dtype": module.weight.dtype if config is None else dtype,
        "quant_config": config,
        "prefix": layer.facts.prefix,
        "facts": layer.facts,
    }
    with torch.device("meta"):
        return _MAKERS[shard.way](module, shard, group, options).eval()


def _columns(
    module: Any, shard: Shard, group: ParallelGroup, options: LinearOptions
) -> ColumnParallelLinear:
    return ColumnParallelLinear(
        module.in_features,
        module.out_features,
        module.bias is not None,
        shard.way == "gathered",
        divisions=[shard.division],
        group=group,
        **options,
    )


def _rows(
    module: Any, shard: Shard, group: ParallelGroup, options: LinearOptions
) -> RowParallelLinear:
    return RowParallelLinear(
        module.in_features,
        module.out_features,
        module.bias is not None,
        shard.way == "rows",
        division=shard.division,
        group=group,
        **options,
    )


def _vocabulary(
    module: Any, shard: Shard, group: ParallelGroup, options: LinearOptions
) -> nn.Module:
    if isinstance(module, nn.Embedding):
        return VocabParallelEmbedding(
            module.num_embeddings,
            module.embedding_dim,
            params_dtype=module.weight.dtype,
            prefix=options["prefix"],
            group=group,
        )
    has_bias = module.bias is not None
    return ParallelLMHead(module.out_features, module.in_features, has_bias, group=group, **options)


_MAKERS: dict[Way, Callable[[Any, Shard, ParallelGroup, LinearOptions], nn.Module]] = {
    "columns": _columns,
    "gathered": _columns,
    "rows": _rows,
    "split": _rows,
    "vocabulary": _vocabulary,
}
