"""The kernels and substitutions that a platform offers, from every plugin, and the policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from quantdock.dispatch import Dispatch
from quantdock.kernel import Kernel, Policy, Substitution
from quantdock.platform import Platform
from quantdock.registry.answer import Answer, Question, settle
from quantdock.registry.current import current
from quantdock.registry.platforms import get_platform
from quantdock.registry.registry import Registry
from quantdock.registry.settings import KERNEL


class Named(Protocol):
    """What an offer needs."""

    @property
    def name(self) -> str:
        """The word by which users name it."""
        ...


Offer = TypeVar("Offer", bound=Named)

_NO_POLICY = Policy()


def dispatch_for(platform: str | Platform | None = None, policy: Policy = _NO_POLICY) -> Dispatch:
    """Return all that choosing kernels on ``platform`` needs, bound to ``policy``.

    QUANTDOCK_KERNEL names the required kernel where the policy requires none.

    Raises:
        PlatformError: no such platform.
        PluginConflictError: two plugins of one rank offer different kernels under one name.
    """
    registry = current()
    found = get_platform(platform)
    kernels, substitutions = registry.remember(
        ("offers", found),
        lambda: (
            _collect(registry, "get_kernels", found, Kernel),
            _collect(registry, "get_substitutions", found, Substitution),
        ),
    )
    wanted = os.environ.get(KERNEL, "").strip()
    if wanted and policy.require is None:
        policy = replace(policy, require=wanted)
    return Dispatch(platform=found, kernels=kernels, substitutions=substitutions, policy=policy)


def _collect(
    registry: Registry, hook: str, platform: Platform, kind: type[Offer]
) -> tuple[Offer, ...]:
    """Return what plugins offer, the platform's owner first, each in its own order.

    Of one name the best rank counts.
    """
    by_name: dict[str, list[Answer[Offer]]] = {}
    for answer in registry.ask(hook, platform).given:
        rows = answer.value if isinstance(answer.value, Sequence) else (answer.value,)
        for row in rows:
            if isinstance(row, kind):
                offer = Answer(plugin=answer.plugin, value=row, rank=answer.rank)
                by_name.setdefault(row.name, []).append(offer)
            else:
                reason = f"{hook}({platform}) gave {row!r}, no {kind.__name__}"
                registry.record(answer.plugin.failure("answer", reason))
    chosen = []
    for name, offers in by_name.items():
        question = Question(
            text=f"both offer {kind.__name__.lower()} {name} on {platform}, and differ",
            keys=(name, platform.name),
        )
        best = settle(offers, question, registry.settings.prefer)
        assert best is not None, "every name has at least one offer"
        chosen.append(best.value)
    return tuple(chosen)
