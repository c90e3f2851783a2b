"""How the layers of one group are read: a class for each way in which codes are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from quantdock.configs.compressed_args import METHOD
from quantdock.configs.compressed_groups import Group
from quantdock.configs.fp8_tensors import FLOAT_SCALES, fp8_slots
from quantdock.configs.integer_tensors import WORDS
from quantdock.configs.mixed_checkpoint import Fp8Layers, IntegerLayers, Reader
from quantdock.configs.stored_integers import StoredIntegers
from quantdock.formats import EXPONENT_BYTES
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme


class Floats(Fp8Layers):
    """Groups in fp8."""

    name = METHOD

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight, its scale, and the scale of its input where there is one."""
        dtypes = EXPONENT_BYTES if scheme.weight.scale == "e8m0" else FLOAT_SCALES
        return fp8_slots(scheme, n, k, facts, dtypes)


class Integers(StoredIntegers, IntegerLayers):
    """Groups in integers, one code a byte."""

    name = METHOD


class PackedIntegers(Integers):
    """Groups in integers of 1 to 8 bits, packed into 32-bit words."""

    codes = WORDS


def _floats(scheme: Scheme, stated: str) -> Floats:
    return Floats(scheme.weight, scheme.activation, stated)


# Word of compressed_groups.FORMATS -> who reads it; "plain" is read by nobody.
_READERS: Mapping[str, Callable[[Scheme, str], Reader]] = MappingProxyType(
    {"floats": _floats, "integers": Integers, "words": PackedIntegers}
)


def make_reader(group: Group) -> Reader | None:
    """Return the reader of the layers of ``group``; None where they are stored plain."""
    if group.scheme is None:
        return None
    return _READERS[group.storage](group.scheme, group.source)
