"""The user's word against the file's: which method loads a checkpoint, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantdock.config import QuantizationConfig
from quantdock.errors import ConfigError
from quantdock.method_name import MethodName
from quantdock.platform import Platform
from quantdock.registry.claims import Claim, find_claim
from quantdock.registry.compatibility import find_pair
from quantdock.registry.current import current
from quantdock.registry.lookup import ResolvedMethod, resolve_method
from quantdock.registry.meaning import is_open, runnable_names
from quantdock.registry.mismatch import Block, mismatch, why_not_read
from quantdock.registry.name_table import Canonical, canonical
from quantdock.registry.platforms import get_platform
from quantdock.registry.spelling import spell
from quantdock.schemes.shorthands import SHORTHANDS

_USER = "the user"
_WORDS = frozenset({*SHORTHANDS, "none"})  # that choices may have
_ONLINE = "_online"  # what names of methods for 16-bit checkpoints alone end with


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodChoice:
    """The method that loads a checkpoint, and why.

    Attributes:
        block: what ``config_class.from_config`` reads; None where the file says nothing:
            ``config_class.online`` makes the config.
        is_online: a 16-bit checkpoint is quantized at load.
        dequantize: a quantized checkpoint is decoded to the model's dtype at load.
        asked: the user named this very method; an alias leaves more open.
        at_load: the name that is for more layers of a 16-bit checkpoint; "" where this is.
    """

    name: str
    config_class: type[QuantizationConfig]
    platform: Platform
    block: Mapping[str, Any] | None
    is_online: bool
    dequantize: bool
    because: str
    notes: tuple[str, ...] = ()
    asked: bool = False
    at_load: str = ""


def choose_method(
    user: str | None, block: Block | None, platform: str | Platform | None = None
) -> MethodChoice:
    """Return the method for a checkpoint whose file says ``block`` when the user asks ``user``.

    Raises:
        MismatchError: the two cannot be combined, or two configs claim the checkpoint.
        ConfigError: the file names no method, or a 16-bit checkpoint cannot get this one.
        MethodLookupError: the method is unknown or does not run on the platform.
    """
    if block is None:
        return _for_plain_file(user, platform)
    source = _source(block)
    if not isinstance(block.method, str) or not block.method.strip():
        raise ConfigError(
            f"The checkpoint's quantization settings name no method: {block.method!r}.",
            why=[f"found in {source}"],
            todo='Write quant_method into it, such as "quant_method": "fp8".',
        )
    return _for_quantized_file(user, block, source, platform)


def _for_plain_file(user: str | None, platform: str | Platform | None) -> MethodChoice:
    asked = "none" if user is None else user
    found = resolve_method(asked, platform, source="" if user is None else _USER)
    row = _canonical(asked, found.platform).row
    is_none = found.name == "none"
    if not is_none and row is not None and not row.online:
        raise _not_online(asked, row, found)
    because = (
        f"the user asks for {found.name}; the checkpoint is not quantized"
        if user is not None
        else "neither the user nor the checkpoint asks for quantization"
    )
    at_load = "" if row is None else row.at_load
    return _choice(found, None, because, is_online=not is_none, at_load=at_load)


def _for_quantized_file(
    user: str | None, block: Block, source: str, platform: str | Platform | None
) -> MethodChoice:
    here = get_platform(platform)
    file = _canonical(block.method, here)
    wanted = _canonical(user, here) if user is not None else None
    asked_for = wanted.name if wanted else None
    decodes = asked_for == "none"
    claim = find_claim(current(), block.block, asked_for, here, decodes=decodes)
    if claim is not None and spell(claim.name) == spell(file.name):
        claim = None
    if wanted is None:
        if claim is not None:
            found = resolve_method(claim.name, platform, source=source)
            because = f"{source} says {block.method}; {claim.name} takes it over: {claim.reason}"
            return _choice(found, block, because)
        found = resolve_method(block.method, platform, source=source)
        return _choice(found, block, f"{source} says {block.method}")
    assert user is not None, "it was just read"
    if decodes:
        found = resolve_method(claim.name if claim else block.method, platform, source=source)
        because = f"{_asks(user, wanted)}; decoded from {found.name} ({source}) at load"
        return _choice(found, block, because, dequantize=True)
    combined = _combine(user, wanted, file, claim, source)
    if combined is None:
        if wanted.row is None:  # unknown, unless a plugin answers for it
            resolve_method(user, platform, source=_USER)
        raise mismatch(user, wanted, file, block, source, here)
    name, because = combined
    asked = spell(user) == spell(name)
    notes = _unheard(claim, name) if asked else ()
    found = resolve_method(name, platform, source=_USER)
    if spell(name) != spell(file.name) and (reasons := why_not_read(found, block)):
        raise mismatch(user, wanted, file, block, source, here, reasons)
    return _choice(found, block, because, notes=notes, asked=asked)


def _asks(user: str, wanted: Canonical) -> str:
    """Return the words for what the user asks, as typed where that is another name."""
    other = f"{user.strip()}, another name of " if wanted.notes else ""
    return f"the user asks for {other}{wanted.name}"


def _combine(
    user: str, wanted: Canonical, file: Canonical, claim: Claim | None, source: str
) -> tuple[str, str] | None:
    """Return the method that loads the file, and why; None where the two do not combine."""
    asks = _asks(user, wanted)
    if spell(wanted.name) == spell(file.name):
        return file.name, f"{asks}, and {source} says the same"
    if claim is not None and spell(claim.name) == spell(wanted.name):
        return claim.name, f"{asks}, which takes the file: {claim.reason}"
    pair = find_pair(wanted.name, file.name)
    if pair is None:
        return None
    name = wanted.name if pair.takes == "user" else file.name
    return name, f"{asks}, {source} says {file.name}: {pair.because}"


def settle_choices(choices: Mapping[str, str], platform: Platform) -> dict[str, str]:
    """Return ``choices``, pattern -> name of an online method, with the words configs know.

    A word that no method has stays as it is; whoever reads the choices refuses it.

    Raises:
        MethodLookupError: a method is outside the platform's set of names.
    """
    here = replace(platform, automatic=False)
    return {pattern: _settled(pattern, word, here) for pattern, word in choices.items()}


def _settled(pattern: str, word: str, here: Platform) -> str:
    # A word may be that of a method for files, whose twin for 16-bit checkpoints is meant.
    # One that is known and to come is none either, wherever it may be known.
    known = [_canonical(name, here) for name in (f"{word}{_ONLINE}", word)]
    names = [found.name for found in known if found.row is not None and not found.row.remedy]
    if names and not any(is_open(current(), name, here) for name in names):
        resolve_method(names[0], here, source=f"choices[{pattern!r}] = {word!r}")
    meant = (name for found in names[::-1] for name in (found, found.removesuffix(_ONLINE)))
    return word if word in _WORDS else next((name for name in meant if name in _WORDS), word)


def _not_online(user: str, row: MethodName, found: ResolvedMethod) -> ConfigError:
    runnable = runnable_names(current(), found.platform)
    rows = [_canonical(name, found.platform).row for name in runnable]
    online = [row.name for row in rows if row is not None and row.online]
    is_alias = spell(user) != spell(found.name)
    name = f"{user.strip()}, another name of {found.name}," if is_alias else found.name
    choose = "one of them"
    if row.at_load in online:
        choose = f"{row.at_load}, which makes the like of 16-bit weights"
    write = f"quantdock convert CHECKPOINT OUT --to {row.name}" if row.on_disk else ""
    return ConfigError(
        f"{name} cannot quantize a 16-bit checkpoint at load.",
        why=[f"those that can on {found.platform}: {', '.join(online)}"],
        todo=f"Choose {choose}, or load a checkpoint that is quantized with {found.name}"
        f"{f' ({write!r} writes one)' if write else ''}.",
    )


def _unheard(claim: Claim | None, name: str) -> tuple[str, ...]:
    if claim is None or spell(claim.name) == spell(name):
        return ()
    return (
        f"{claim.name} would take this file over ({claim.reason}); the user's choice stands. "
        f"Asking for {claim.name}, or for nothing, takes it",
    )


def _choice(
    found: ResolvedMethod,
    block: Block | None,
    because: str,
    *,
    is_online: bool = False,
    dequantize: bool = False,
    notes: tuple[str, ...] = (),
    asked: bool = False,
    at_load: str = "",
) -> MethodChoice:
    return MethodChoice(
        name=found.name,
        config_class=found.config,
        platform=found.platform,
        block=block.block if block else None,
        is_online=is_online,
        dequantize=dequantize,
        because=because,
        notes=(*found.notes, *notes),
        asked=asked,
        at_load=at_load,
    )


def _canonical(name: str, platform: Platform) -> Canonical:
    return canonical(current(), name, platform)


def _source(block: Block) -> str:
    return str(getattr(block, "source", "") or "the checkpoint")
