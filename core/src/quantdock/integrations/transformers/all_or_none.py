"""What must succeed before a loaded model is changed, on this rank and on all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from quantdock.errors import LoadError, QuantDockError
from quantdock.layers import ParallelGroup

_KEPT = "The model keeps the weights it had."


@contextmanager
def all_or_none(group: ParallelGroup, device: torch.device) -> Iterator[None]:
    """Run checks that change nothing; raise on every rank where one rank's fail.

    Errors say that the model is unchanged.

    Raises:
        LoadError: the checks of another rank failed.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failed = group.all_reduce(torch.tensor([int(failure is not None)], device=device))
    if isinstance(failure, QuantDockError):
        todo = f"{_KEPT} {failure.todo}".strip()
        raise type(failure)(failure.what, why=failure.why, todo=todo, **failure.facts) from failure
    if failure is not None:
        failure.add_note(_KEPT)
        raise failure
    if int(failed):
        raise LoadError(
            f"{int(failed)} of {group.size} ranks cannot reload the checkpoint.",
            why=["this one could; the reason is in the error of the others"],
            todo=_KEPT,
        )
