"""The errors for a checkpoint whose method is supported, and its kind of that method not.

A kind is known and to come, or it is called by a word that nobody knows, which is then a mistake or
newer than this release.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import NoReturn

from quantdock.errors import ConfigError, MethodNotYetError

QUANTIZE_AT_LOAD = (
    "Load the 16-bit original of this model and quantize it at load: "
    "quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
)


def kind_to_come(method: str, *why: str, todo: str = QUANTIZE_AT_LOAD) -> NoReturn:
    """Raise the error; ``why`` begins with where in the block the kind is named.

    Raises:
        MethodNotYetError: always.
    """
    raise MethodNotYetError(
        f"This {method} checkpoint is of a kind that is known and not supported yet.",
        why=why,
        todo=todo,
        asked=method,
        method=method,
        runnable=(),
        elsewhere=(),
    )


def require_known(
    method: str,
    where: str,
    field: str,
    word: str,
    supported: Collection[str],
    to_come: Collection[str],
) -> None:
    """Raise if ``word``, which stands in ``field`` at ``where``, is of neither list; case is free.

    Raises:
        ConfigError: names the words that come closest.
    """
    known = {name.lower(): name for name in (*supported, *to_come)}
    if word.lower() in known:
        return
    near = [known[name] for name in get_close_matches(word.lower(), known, n=2, cutoff=0.6)]
    meant = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise ConfigError(
        f"{method}: {field} is {word!r}, which {method} is not known to write.",
        why=[
            f"found at {where}",
            f"supported: {', '.join(supported)}",
            f"known, and not supported yet: {', '.join(to_come)}",
        ],
        todo=f"{meant}Correct the field if it is wrong about the file. If a newer {method} writes "
        f"it: {QUANTIZE_AT_LOAD[0].lower()}{QUANTIZE_AT_LOAD[1:]}",
        field=field,
        value=word,
    )
