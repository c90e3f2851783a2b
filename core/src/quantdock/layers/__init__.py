"""Layers that know their shape, their ranks and their method; the method knows quantization."""

from quantdock.layers.column_parallel import ColumnParallelLinear, MergedColumnParallelLinear
from quantdock.layers.fused_moe import FusedMoE
from quantdock.layers.linear import LinearBase, ReplicatedLinear
from quantdock.layers.merged_store import MergedStore
from quantdock.layers.merged_view import MergedView
from quantdock.layers.parallel_group import ParallelGroup
from quantdock.layers.qkv_parallel import QKVParallelLinear
from quantdock.layers.row_parallel import RowParallelLinear
from quantdock.layers.vocab_parallel import ParallelLMHead, VocabParallelEmbedding

__all__ = [
    "ColumnParallelLinear",
    "FusedMoE",
    "LinearBase",
    "MergedColumnParallelLinear",
    "MergedStore",
    "MergedView",
    "ParallelGroup",
    "ParallelLMHead",
    "QKVParallelLinear",
    "ReplicatedLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
]
