"""The eight checks, in the order people debug by hand, and the facts each cannot do without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: where its code is, and the facts of the case that it needs."""

    name: str
    title: str
    target: str  # "module:function", taking the case and returning a Result
    needs: tuple[str, ...] = ()


def _check(name: str, title: str, module: str, *needs: str) -> Check:
    return Check(
        name=name, title=title, target=f"quantdock.diagnosis.{module}:examine", needs=needs
    )


CHECKS: tuple[Check, ...] = (
    _check("name", "method and platform resolve", "name_check", "block"),
    _check("metadata", "metadata is found and makes sense", "metadata_check"),
    _check("capability", "the platform can do it", "capability_check", "bound", "checkpoint"),
    _check("dispatch", "each layer is what it should be", "dispatch_check", "layers"),
    _check("shapes", "shapes fit, and shards", "shape_check", "layers"),
    _check("scales", "scales and codes are sane", "scale_check", "layers"),
    _check("kernels", "kernels are chosen", "kernel_check", "layers"),
    _check("numbers", "numbers are right", "number_check", "layers"),
)
# Facts that can fail by themselves, and the check that says why; others are made of these.
OWNERS: tuple[tuple[str, str], ...] = (
    ("folder", "metadata"),
    ("config", "metadata"),
    ("block", "metadata"),
    ("platform", "name"),
    ("choice", "name"),
    ("checkpoint", "metadata"),
    ("bound", "metadata"),
    ("dtype", "capability"),
    ("setting", "capability"),
)


def number_of(name: str) -> int:
    """Return the number of the check called ``name``, from 1.

    >>> number_of("scales")
    6
    """
    return 1 + [check.name for check in CHECKS].index(name)
