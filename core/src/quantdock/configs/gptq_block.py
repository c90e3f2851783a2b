"""The fields of a GPTQ block, of every tool that writes one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantdock.configs.fields import Fields
from quantdock.configs.gptq_tensors import BITS, ZeroStorage
from quantdock.configs.group_setting import GroupSetting
from quantdock.configs.matcher import Entry, entries
from quantdock.errors import ConfigError

# Whether zero points are stored as they are meant, by the word for the version.
_VERSIONS = {"gptq": False, "gptq_v2": True}
_LIST = "modules_in_block_to_quantize"
# What an override may say otherwise; None: the layers are left as they are.
Override = GroupSetting | None


def read_setting(fields: Fields) -> GroupSetting:
    """Return how layers are encoded.

    Files that do not say whether they are symmetric are read with their zero points, which is
    exact for both.

    Raises:
        ConfigError: a field has an impossible value, or bits or group_size is missing.
    """
    return GroupSetting(
        bits=fields.bits("bits", allowed=BITS),
        group_size=fields.group_size("group_size"),
        sym=bool(fields.flag("sym")),
        desc_act=bool(fields.flag("desc_act")),
    )


def read_zeros(fields: Fields) -> ZeroStorage:
    """Return how the file writes zero points.

    Raises:
        ConfigError: it is in the layout of a kernel, or packs codes into other words.
    """
    if fields.flag("is_marlin_format"):
        fields.refuse("is_marlin_format", "false", "the file is in the layout of one kernel")
    if fields.get("pack_dtype") not in (None, "int32"):
        fields.refuse("pack_dtype", "'int32'", "qweight is read in words of 32 bits")
    name = next((n for n in ("checkpoint_format", "format") if fields.get(n)), "format")
    word = fields.get(name) or "gptq"
    if str(word).lower() not in _VERSIONS:
        words = ", ".join(map(repr, _VERSIONS))
        fields.refuse(name, words, "other words name the layout of one kernel, or another method")
    return ZeroStorage(
        v2=_VERSIONS[str(word).lower()],
        whole_words="gptqmodel" in str(_written_by(fields.get("meta"))).lower(),
        stated=f"{name} = {word!r}" if fields.get(name) else "no format is stated, which is 'gptq'",
    )


def read_dynamic(fields: Fields, usual: GroupSetting) -> Iterator[Entry[Override]]:
    """Yield the entries of ``dynamic``, the first that matches a layer counts.

    A pattern is a regular expression for the beginning of a name. Behind "-:" it leaves layers as
    they are, behind "+:" or nothing it says how they are encoded.

    Raises:
        ConfigError: it is no object of objects, or a field in it has an impossible value.
    """
    table = fields.get("dynamic") or {}
    if not isinstance(table, Mapping) or not all(
        isinstance(said, Mapping | None) for said in table.values()
    ):
        fields.refuse("dynamic", "an object, pattern to an object of fields")
    for pattern, said in table.items():
        source = f"dynamic[{pattern!r}]"
        text = f"re:{_regex(pattern, source)}"
        if pattern.startswith("-:"):
            yield Entry(text=text, source=source, value=None)
        else:
            block = usual.block | {
                key: value for key, value in (said or {}).items() if value is not None
            }
            setting = read_setting(Fields(block, f"gptq: {source}"))
            yield Entry(text=text, source=source, value=setting)


def _regex(pattern: str, source: str) -> str:
    """Return the regular expression of a pattern.

    Raises:
        ConfigError: it is none.
    """
    text = pattern.removeprefix("-:").removeprefix("+:")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"gptq: {source} is no regular expression.",
            why=[str(error)],
            todo="Correct it; a pattern is for the beginning of a name, such as '.*down_proj'.",
            field="dynamic",
            value=pattern,
        ) from error
    return text


def read_only(fields: Fields) -> tuple[Entry[None], ...]:
    """Return the names that modules_in_block_to_quantize lists, in whatever lists of lists.

    Raises:
        ConfigError: it has something else than names.
    """
    names = list(_flat(fields.get(_LIST)))
    if not all(isinstance(name, str) for name in names):
        fields.refuse(_LIST, "lists of names, or null")
    return entries(_LIST, names)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def _written_by(meta: object) -> object:
    """Return the tool and version that wrote the file, or nothing."""
    return meta.get("quantizer") if isinstance(meta, Mapping) else None
