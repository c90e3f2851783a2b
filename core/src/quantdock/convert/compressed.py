"""The layout of compressed-tensors: a group of layers for each scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quantdock.configs.compressed_groups import METHOD
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.convert.dialect import Dialect
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.schemes import Scheme

_FORMATS = {"f32": "float-quantized", "e8m0": "mxfp8-quantized"}
_MIXED = "mixed-precision"  # says that each group has a format of its own


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    """Return the block: the commonest scheme is that of all linear layers, others go by name.

    Named layers come first: compressed-tensors warns of names that a class name before them took.
    """
    *named, usual = [scheme for scheme, _ in reversed(Counter(layers.values()).most_common())]
    made = [
        _group(scheme, [name for name, own in layers.items() if own == scheme]) for scheme in named
    ]
    groups = {f"group_{n}": group for n, group in enumerate([*made, _group(usual, ["Linear"])])}
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else _MIXED,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(plain),
        "kv_cache_scheme": None,
    }


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    given = scheme.activation is None
    return {
        "targets": targets,
        "format": _FORMATS.get(scheme.weight.scale, scheme.weight.scale),
        "weights": _args(scheme.weight, "channel"),
        "input_activations": None if given else _args(scheme.activation, "token"),
        "output_activations": None,
    }


def _args(spec: QuantSpec | None, one_row: str) -> dict[str, Any]:
    """Return the QuantizationArgs of ``spec``; ``one_row`` is the word for a scale a row."""
    assert spec is not None, "an activation that stays as given has no args"
    element = ELEMENTS[spec.element]
    args: dict[str, Any] = {
        "num_bits": element.bits,
        "type": "float" if element.is_float else "int",
        "strategy": one_row if spec.granularity == "channel" else spec.granularity,
        "symmetric": not spec.zero,
        "dynamic": spec.dynamic,
    }
    if spec.granularity == "group":
        args["group_size"] = spec.cols
    if spec.granularity == "block":
        args["block_structure"] = [spec.rows, spec.cols]
    if spec.scale == "e8m0":
        args["scale_dtype"] = "torch.uint8"
    return args


COMPRESSED = Dialect(
    name=METHOD,
    scale_name="weight_scale",
    make_block=_make_block,
    reader=CompressedTensorsConfig,
)
