"""Which dialect a set of layers is written in, where nobody has named one."""

from __future__ import annotations

from collections.abc import Mapping

from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.dialect import Dialect
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.errors import SaveError
from quantdock.schemes import Scheme


def choose_dialect(layers: Mapping[str, Scheme]) -> Dialect:
    """Return the dialect for layers (prefix -> scheme): blocks go by transformers' own.

    Raises:
        SaveError: no dialect has words for all of them.
    """
    are_blocks = all(scheme.weight.granularity == "block" for scheme in layers.values())
    dialects = (FINE_GRAINED, COMPRESSED) if are_blocks else (COMPRESSED, FINE_GRAINED)
    why: list[str] = []
    for dialect in dialects:
        reasons = dialect.why_not(layers)
        if not reasons:
            return dialect
        why += reasons
    raise SaveError(
        "No checkpoint format can hold the schemes of these layers.",
        why=why,
        todo="Copy the checkpoint the model was loaded from, or load it with quantization='none' "
        "and save that.",
    )
