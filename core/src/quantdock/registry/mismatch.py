"""A method that cannot read a file: whether that is so by its settings, and what can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quantdock.errors import ConfigError, MethodNotYetError, MismatchError, QuantDockError
from quantdock.platform import Platform
from quantdock.registry.compatibility import readers_of
from quantdock.registry.current import current
from quantdock.registry.lookup import ResolvedMethod, resolve_method
from quantdock.registry.meaning import runnable_names
from quantdock.registry.name_table import Canonical
from quantdock.registry.offers import dispatch_for


class Block(Protocol):
    """What a checkpoint says of its quantization; checkpoint.metadata finds it."""

    @property
    def method(self) -> str:
        """The method name as the file spells it, or as it was inferred."""
        ...

    @property
    def block(self) -> Mapping[str, Any]:
        """The settings."""
        ...


def why_not_read(found: ResolvedMethod, block: Block) -> tuple[str, ...]:
    """Return why a method cannot read the settings that another one wrote; empty where it can.

    Raises:
        MethodNotYetError: no method of this release can.
    """
    try:
        found.config.from_config(block.block)
    except ConfigError as error:
        return error.what.removesuffix("."), *error.why
    return ()


def mismatch(
    user: str,
    wanted: Canonical,
    file: Canonical,
    block: Block,
    source: str,
    platform: Platform,
    reasons: Sequence[str] = (),
) -> MismatchError:
    """Return the error that lists what may be asked for, or the remedy of an unreadable file.

    Args:
        user: the name as typed, ``wanted`` by its canonical one.
        reasons: why the method cannot read these settings, though it reads others of the file's.
    """
    why = [*wanted.notes, f"{source} says {file.name}", *reasons]
    if not reasons and wanted.row is not None and not wanted.row.serialized:
        why.append(f"{wanted.name} quantizes 16-bit checkpoints at load; this one is quantized")
    offered, todo = _offers(file, block, platform)
    return MismatchError(
        f"quantization={user!r} cannot be combined with "
        f"{'this' if reasons else 'a'} checkpoint of {file.name}.",
        why=[*why, offered],
        todo=todo,
        user=wanted.name,
        file=file.name,
    )


def _offers(file: Canonical, block: Block, platform: Platform) -> tuple[str, str]:
    """Return which methods read a file here, as a sentence, and what to do."""
    runnable = runnable_names(current(), platform)
    if file.name not in runnable:
        todo = (file.row.remedy if file.row else None) or "Check quant_method in the file."
        return f"{file.name} files are not supported yet on {platform}", todo
    try:
        resolve_method(file.name, platform).config.from_config(block.block)
    except MethodNotYetError as error:
        return f"this file is not supported yet: {error.what.removesuffix('.')}", error.todo
    except QuantDockError:
        pass  # whoever leaves the option out is told
    readers = [name for name in readers_of(file.name) if name in runnable]
    able = [name for name in readers if _reads(name, block, platform)]
    return (
        f"what may be asked for on this file here: {', '.join((file.name, *able))}, none",
        "Leave the option out to run the file as it is, or ask for 'none' to decode it to "
        "the model's dtype at load.",
    )


def _reads(name: str, block: Block, platform: Platform) -> bool:
    """Return whether the method ``name`` takes the settings of a file, and has kernels for them."""
    try:
        resolve_method(name, platform).config.from_config(block.block).bind(dispatch_for(platform))
    except QuantDockError:
        return False
    return True
