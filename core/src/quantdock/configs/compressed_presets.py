"""The presets of compressed-tensors: what a group that is only a list of targets stands for.

>>> PRESETS["W4A16"]["weights"]["group_size"], PRESETS["W4A16"].get("input_activations")
(128, None)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Group = dict[str, Any]


def _args(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True, **more}


def _group(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> Group:
    return {"weights": weights, "input_activations": inputs}


def _micro(bits: int) -> dict[str, Any]:
    """Return microscaling floats: groups of 32 with exponent bytes."""
    return _args("float", bits, "group", group_size=32, scale_dtype="torch.uint8")


def _integers(weight_bits: int, activation_bits: int) -> Group:
    weights = _args("int", weight_bits, "group", group_size=128)
    if activation_bits == 16:
        return _group(weights)
    return _group(weights, _args("int", activation_bits, "token", dynamic=True))


_FP8_TOKEN = _args("float", 8, "token", dynamic=True)
_FP8_GROUP = _args("float", 8, "group", group_size=128, dynamic=True)
_W8A8 = _group(_args("int", 8, "channel"), _args("int", 8, "token", dynamic=True))
_NV = _args("float", 4, "tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn")

# Upper-case name -> the group without its targets. Source: compressed-tensors 0.20.1.
PRESETS: Mapping[str, Group] = MappingProxyType(
    {
        **{
            f"W{weight}A{activation}": _integers(weight, activation)
            for activation in (4, 8, 16)
            for weight in range(2, min(activation, 8) + 1)
        },
        "UNQUANTIZED": {},
        "W4A16_ASYM": _group(_args("int", 4, "group", group_size=128, symmetric=False)),
        "W8A8": _W8A8,
        "INT8": _W8A8,
        "W4AFP8": _group(_args("int", 4, "group", group_size=128), _FP8_TOKEN),
        "FP8": _group(_args("float", 8, "tensor"), _args("float", 8, "tensor", dynamic=False)),
        "FP8_DYNAMIC": _group(_args("float", 8, "channel"), _FP8_TOKEN),
        "FP8_BLOCK": _group(_args("float", 8, "block", block_structure=[128, 128]), _FP8_GROUP),
        "MXFP8": _group(_micro(8), _micro(8) | {"dynamic": True}),
        "MXFP8A16": _group(_micro(8)),
        "MXFP6A16": _group(_micro(6)),
        "MXFP6A8": _group(_micro(6), _micro(8) | {"dynamic": True}),
        "MXFP4": _group(_micro(4), _micro(4) | {"dynamic": True}),
        "MXFP4A16": _group(_micro(4)),
        "MXFP4XFP8": _group(_micro(4), _FP8_GROUP),
        "NVFP4": _group(_NV, _NV | {"dynamic": "local"}),
        "NVFP4A16": _group(_NV),
    }
)
