"""How the layers of one group are read: a class for each way in which codes are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from quantdock.configs.compressed_args import METHOD
from quantdock.configs.compressed_groups import Group
from quantdock.configs.fp8_tensors import FLOAT_SCALES, fp8_slots
from quantdock.configs.integer_tensors import BYTES, WORDS, faults, integer_slots, stored_shape
from quantdock.configs.matcher import Match
from quantdock.configs.mixed_checkpoint import Fp8Layers, IntegerLayers, Reader
from quantdock.configs.stored import HEADERS, WEIGHT_SCALES
from quantdock.formats import EXPONENT_BYTES
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class Floats(Fp8Layers):
    """Groups in fp8."""

    name = METHOD

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight, its scale, and the scale of its input where there is one."""
        dtypes = EXPONENT_BYTES if scheme.weight.scale == "e8m0" else FLOAT_SCALES
        return fp8_slots(scheme, n, k, facts, dtypes)


class Integers(IntegerLayers):
    """Groups in integers, one code a byte."""

    name = METHOD
    codes = BYTES

    def misfit(self, scheme: Scheme, name: str, stored: Mapping[str, StoredTensor]) -> str:
        """Return what is wrong with the headers of a layer; empty: nothing."""
        return "; ".join(faults(name, scheme, stored, self.codes))

    def _plain(
        self, facts: LayerFacts, weight: StoredTensor, listed: Match[None] | None
    ) -> Decision:
        """Refuse float weights with scales: a file of weights that are yet to be quantized."""
        scales = [key for key in facts.stored or () if key.rpartition(".")[2] in WEIGHT_SCALES]
        if scales:
            because = (
                f"its weight is stored as {weight.dtype} beside {', '.join(scales)}: the file was "
                "saved before it was compressed"
            )
            return Decision.refused(because, HEADERS)
        return super()._plain(facts, weight, listed)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return (N, K) as codes and scales show it."""
        return stored_shape(scheme.weight, facts.stored or {}, self.codes)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return codes, scales, and zero points, group index and input scale where they are."""
        return integer_slots(scheme, n, k, facts, self.codes)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes as meant, with their scales and zero points."""
        from quantdock.configs.integer_codes import decode_integers

        return decode_integers(scheme, stored, facts.prefix)


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
