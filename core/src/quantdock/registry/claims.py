"""Claims: configs that take over a checkpoint which names another method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdock.errors import MismatchError
from quantdock.platform import Platform
from quantdock.registry.lookup import STEP_DOWN
from quantdock.registry.meaning import find_meaning, is_open, runnable_names
from quantdock.registry.offers import dispatch_for
from quantdock.registry.platforms import get_platform
from quantdock.registry.registry import Registry
from quantdock.registry.spelling import spell


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One config's claim: its method name, why, and the distribution it comes from."""

    name: str
    reason: str
    distribution: str


def find_claim(
    registry: Registry,
    block: Mapping[str, Any],
    user: str | None,
    platform: Platform,
    *,
    decodes: bool = False,
) -> Claim | None:
    """Return the one claim on a checkpoint with settings ``block``, or None.

    Where the user has chosen a method its own claim comes first, and several are no error: the
    choice stands against all of them. Where nothing claims it on an automatic platform, configs
    count for which that steps down to the plain CPU: those whose names it excludes.

    Args:
        decodes: only claims on how the file is read count, and none that rest on a kernel.
    Raises:
        MismatchError: two configs claim it and the user has chosen nothing.
    """
    claims = _claims(registry, block, user, platform, decodes)
    if not claims and platform.automatic and platform.builtin_methods is not None:
        lower = _claims(registry, block, user, get_platform(STEP_DOWN), decodes)
        claims = [claim for claim in lower if not is_open(registry, claim.name, platform)]
    if user is not None:
        claims.sort(key=lambda claim: spell(claim.name) != spell(user))
    elif len(claims) > 1:
        names = [claim.name for claim in claims]
        raise MismatchError(
            f"{' and '.join(names)} both claim this checkpoint.",
            why=[f"{c.name} ({c.distribution}): {c.reason}" for c in claims],
            todo=f"Choose one: quantization={names[0]!r} or {names[1]!r}.",
            claims=tuple(names),
        )
    return claims[0] if claims else None


def _claims(
    registry: Registry,
    block: Mapping[str, Any],
    user: str | None,
    platform: Platform,
    decodes: bool,
) -> list[Claim]:
    kernels = () if decodes else dispatch_for(platform).kernels
    found = []
    for name in runnable_names(registry, platform):
        meaning = find_meaning(registry, name, platform)
        if meaning.config is None or meaning.plugin is None:
            continue
        try:
            reason = meaning.config.claim(block, user, platform, kernels)
        except Exception as error:
            failure = meaning.plugin.failure("answer", f"the claim of {name}", error)
            registry.record(failure, error)
            continue
        if reason:
            found.append(Claim(name=name, reason=reason, distribution=meaning.plugin.distribution))
    return found
