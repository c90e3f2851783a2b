"""The quantization block of a checkpoint: found wherever tools have put it, never changed.

Search order: ``quantization_config`` of config.json; the same key in a language sub-config;
``compression_config``; the side files of SIDE_FILES. The first one is used, a later one that
differs is reported.

>>> block = find_quantization({"text_config": {"quantization_config": {"quant_method": "fp8"}}})
>>> block.method, block.scope, block.source
('fp8', 'text_config', 'config.json: text_config.quantization_config')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantdock.checkpoint.block_dialects import (
    flatten,
    from_mistral_params,
    from_tensor_table,
    infer_method,
)
from quantdock.checkpoint.block_difference import differences
from quantdock.checkpoint.json_file import read_json
from quantdock.errors import ConfigError

# Where multimodal models keep the config of their language model, usual ones first.
LANGUAGE_CONFIGS = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "lm_config",
    "thinker_config",
    "thinker_config.text_config",
)
_KEY = "quantization_config"
_OLD_KEY = "compression_config"  # of sparseml, and of early compressed-tensors


def _whole(content: dict[str, Any]) -> object:
    return content


# File name, how its content becomes a block (or None), the method of a block that names none.
SIDE_FILES: tuple[tuple[str, Callable[[dict[str, Any]], object], str], ...] = (
    ("hf_quant_config.json", _whole, "modelopt"),
    ("quantize_config.json", _whole, "gptq"),
    ("quant_config.json", _whole, "awq"),
    ("quantization_config.json", _whole, ""),
    ("params.json", from_mistral_params, ""),
    ("quant_model_description.json", from_tensor_table, "modelslim"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationBlock:
    """What a checkpoint says of its quantization, and where.

    ``method`` is the name as it stands there, or as inferred; ``scope`` the sub-config it stands
    in ("" for the whole model). ``block`` is a copy; it always has ``quant_method``.
    """

    block: dict[str, Any]
    method: str
    source: str
    scope: str = ""
    warnings: tuple[str, ...] = ()


def find_quantization(
    config: Mapping[str, Any], folder: Path | None = None
) -> QuantizationBlock | None:
    """Return the block that counts, or None where the checkpoint says nothing.

    Args:
        config: the content of config.json.
        folder: where to look for side files; None: nowhere.
    Raises:
        ConfigError: a block is no object, is empty, or names no method.
        CheckpointError: a side file is no JSON.
    """
    found = list(_in_config(config))
    if folder is not None:
        found += _in_side_files(folder)
    if not found:
        return None
    used, *others = found
    warnings = []
    for other in others:
        if different := differences(used.block, other.block):
            warnings.append(
                f"{used.source} (used) and {other.source} differ: {'; '.join(different)}"
            )
        elif not used.scope:
            # The same block stands at the top and in a sub-config: the narrower place holds.
            used = replace(used, scope=other.scope)
    return replace(used, warnings=tuple(warnings))


def _in_config(config: Mapping[str, Any]) -> Iterator[QuantizationBlock]:
    for path in ("", *LANGUAGE_CONFIGS):
        place: Any = config
        for key in path.split(".") if path else ():
            place = place.get(key) if isinstance(place, Mapping) else None
        if isinstance(place, Mapping) and place.get(_KEY) is not None:
            where = f"{path}.{_KEY}" if path else _KEY
            yield _block(place[_KEY], f"config.json: {where}", scope=path)
    if config.get(_OLD_KEY) is not None:
        yield _block(config[_OLD_KEY], f"config.json: {_OLD_KEY}", usual="compressed-tensors")


def _in_side_files(folder: Path) -> Iterator[QuantizationBlock]:
    for name, convert, usual in SIDE_FILES:
        if (file := folder / name).is_file():
            content = convert(read_json(file))
            if content is not None:
                yield _block(content, name, usual=usual)


def _block(raw: object, source: str, *, scope: str = "", usual: str = "") -> QuantizationBlock:
    """Return the block ``raw``, copied; ``usual`` is the method of one that names none."""
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"{source} is a {type(raw).__name__}, {raw!r:.60}, and not an object.",
            why=['an object such as {"quant_method": "fp8", ...} is expected'],
            todo="Write the block out, or remove it and pass quantization=NAME.",
            field=source,
        )
    block = flatten(deepcopy(dict(raw)))
    method = infer_method(block) or usual
    if not method:
        raise ConfigError(
            f"{source} does not say which method it is: quant_method is {block['quant_method']!r}."
            if "quant_method" in block
            else f"{source} does not say which method it is: it has no quant_method.",
            why=[f"its keys are {', '.join(sorted(block)) or '(none)'}"],
            todo='Add "quant_method" to the block, such as "fp8", "gptq" or "awq".',
            field=source,
        )
    block["quant_method"] = method
    return QuantizationBlock(block=block, method=method, source=source, scope=scope)
