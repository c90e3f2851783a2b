"""The tuner of a platform: what measures the ways of its kernels on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import resolve_name

from quantdock.errors import PlatformError
from quantdock.platform import Platform
from quantdock.registry.answer import Question, settle
from quantdock.registry.current import current
from quantdock.registry.platforms import describe_usual, get_platform
from quantdock.registry.plugin import describe_exception
from quantdock.tuner import Tuner


def find_tuner(platform: Platform) -> str | None:
    """Return the target of the tuner that a plugin offers for ``platform``; None: none does.

    Raises:
        PluginConflictError: two plugins of one rank offer different ones.
    """
    registry = current()
    answers = registry.ask("get_tuner", platform).given
    question = Question(text=f"both tune kernels of {platform}", keys=(platform.name,))
    best = settle(answers, question, registry.settings.prefer)
    return None if best is None else str(best.value)


def get_tuner(platform: Platform) -> Tuner:
    """Return the tuner of a platform of this machine.

    Raises:
        PlatformError: the platform is described only, nothing of it can be tuned, or its tuner
            cannot be used.
    """
    target = find_tuner(platform)
    if target is None:
        raise PlatformError(
            f"There is nothing to tune on {platform}.",
            why=["its kernels have no choice of ways to be measured", *_elsewhere()],
            todo="Run without tuning: what is fast there does not depend on it.",
        )
    if platform.described:
        raise PlatformError(
            f"{platform} is described, and tuning measures on the device itself.",
            todo=f"Run `quantdock tune --platform {platform.name}` on a machine that has one.",
        )
    try:
        tuner: Tuner = resolve_name(target)(platform)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise PlatformError(
            f"The tuner of {platform} cannot be used.",
            why=[f"{target}: {describe_exception(error)}"],
            todo="Repair or update the package that brings it.",
        ) from error
    return tuner


def _elsewhere() -> Iterator[str]:
    """Yield which platforms can be tuned, and why one is not on this machine; failed plugins."""
    registry = current()
    for name in [found.name for found in describe_usual(registry) if find_tuner(found)]:
        try:
            get_platform(name)
            yield f"{name} can be tuned, and is on this machine: --platform {name}"
        except PlatformError as error:
            yield f"{name} can be tuned, and is not on this machine: {'; '.join(error.why)}"
    yield from registry.suspects()
