"""Every error QuantDock raises: one class per remedy, each text says what, why and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class QuantDockError(Exception):
    """Base of all errors: what failed (with values), every reason, and the next step.

    Facts given as keywords become attributes, so that callers need not parse the text.
    """

    def __init__(
        self, what: str, *, why: Sequence[str] = (), todo: str = "", **facts: object
    ) -> None:
        self.what = what
        self.why = tuple(why)
        self.todo = todo
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        lines = [what, *(f"  {reason}" for reason in self.why), *([todo] if todo else [])]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.why, self.todo, self.facts))


def few(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Return the first of ``names``, and how many more there are, for the text of an error.

    >>> few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _rebuild(
    kind: type[QuantDockError],
    what: str,
    why: tuple[str, ...],
    todo: str,
    facts: dict[str, object],
) -> QuantDockError:
    return kind(what, why=why, todo=todo, **facts)


class FormatError(QuantDockError):
    """A tensor or a spec does not fit the format: shape, dtype, range. Fix the input."""


class ConfigError(QuantDockError):
    """A field of the quantization metadata (or a user option) has an impossible value."""


class MethodLookupError(QuantDockError):
    """No method of that name runs here. Attributes: asked, runnable, elsewhere."""

    asked: str


class MethodNotYetError(MethodLookupError):
    """The name is known, and this release cannot run it; the text has the remedy.

    Attribute: method, the canonical name of what was asked.
    """

    method: str


class MismatchError(QuantDockError):
    """The user's method and the checkpoint's method cannot be combined, or two sources differ."""


class PluginConflictError(QuantDockError):
    """Two plugins of one rank give different answers. Attributes: distributions."""


class PluginLoadError(QuantDockError):
    """A plugin, or the code of its kernel that was chosen, could not be loaded."""


class DescriptorError(QuantDockError):
    """A plugin's descriptor (kernel, substitution, platform, name) has an impossible field."""


class PlatformError(QuantDockError):
    """No such platform or architecture, or it is not on this machine."""


class NoKernelError(QuantDockError):
    """No kernel can run a layer under the given policy. Attributes: problem, rejected, remedy."""


class CheckpointError(QuantDockError):
    """A file of the checkpoint is missing, damaged or unsafe. Attribute: path."""


class LoadError(QuantDockError):
    """Tensors and layers do not match: missing, left over, wrong shape. Attributes: names."""


class NothingQuantizedError(QuantDockError):
    """Quantization was asked for and no layer would be quantized."""


class SaveError(QuantDockError):
    """The model's weights are in a kernel's layout and cannot be saved as they are."""


class TargetError(QuantDockError):
    """The folder to write to cannot be used: it is the input, is not empty, or lacks room."""
