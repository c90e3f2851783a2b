"""What tools call the weights of experts, and the tensors of a weight that holds all of them.

>>> split_stacked("gate_up_proj_blocks"), split_stacked("w2")
(('gate_up_proj', '_blocks'), ('w2', ''))
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from types import MappingProxyType

# The weight's name -> which of an expert's it is.
ROLES = MappingProxyType(
    {
        "gate_proj": "gate",
        "w1": "gate",
        "up_proj": "up",
        "w3": "up",
        "gate_up_proj": "gate_up",
        "w13": "gate_up",
        "down_proj": "down",
        "w2": "down",
    }
)
# The names of gate and up, where both are stored in one tensor.
PARTS = MappingProxyType({"gate_up_proj": ("gate_proj", "up_proj"), "w13": ("w1", "w3")})
# The shards of w13, as a checkpoint may have them.
W13 = (("gate_up",), ("gate", "up"), ("up",))
# What states (N, K) of an expert, of gate and up together where they are, or (experts, N, K).
SHAPE = "weight_shape"
# What follows the name of a stacked weight, longest first, and the tensor that it is for a layer.
SUFFIXES = MappingProxyType(
    {
        "_weight_global_scale": "weight_global_scale",
        "_input_global_scale": "input_global_scale",
        "_weight_scale_inv": "weight_scale_inv",
        "_weight_scale_2": "weight_scale_2",
        "_weight_packed": "weight_packed",
        "_weight_shape": "weight_shape",
        "_weight_scale": "weight_scale",
        "_input_scale": "input_scale",
        "_scale_inv": "weight_scale_inv",
        "_blocks": "weight_blocks",
        "_scales": "weight_scales",
        "_weight": "weight",
        "_scale": "weight_scale",
        "_bias": "bias",
        "": "weight",
    }
)


def runtime_name(name: str) -> str:
    """Return what models call a layer or tensor whose file has an older name of its module.

    Loading asks transformers for all such names; this one is known without it.

    >>> runtime_name("model.layers.0.block_sparse_moe.experts.3.w1")
    'model.layers.0.mlp.experts.3.w1'
    """
    return name.replace(".block_sparse_moe.", ".mlp.")


def split_stacked(name: str) -> tuple[str, str]:
    """Return the weight that a stacked tensor belongs to, and the suffix of its name."""
    suffix = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
    return name[: len(name) - len(suffix)], suffix


def has_halves(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Return whether tensors of one expert can be of gate and up, one after the other.

    A lone number is of both; where a tensor has an odd number of rows, one is of both.
    """
    return not any(shape[:1] and shape[0] % 2 and prod(shape) > 1 for shape in shapes)
