"""How the layers of one group are read: a class for each way in which codes are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from quantdock.configs.compressed_args import METHOD
from quantdock.configs.compressed_groups import Group
from quantdock.configs.fp8_tensors import FLOAT_SCALES, fp8_slots
from quantdock.configs.header_check import Misfit
from quantdock.configs.integer_tensors import WORDS
from quantdock.configs.mixed_checkpoint import Fp8Layers, IntegerLayers, Reader
from quantdock.configs.packed_floats import PackedFloats, PackedNames
from quantdock.configs.stored_integers import StoredIntegers
from quantdock.formats import EXPONENT_BYTES, QuantSpec
from quantdock.methods.header_faults import slot_faults
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor


class Floats(Fp8Layers):
    """Groups in fp8."""

    name = METHOD

    def words_for(self, tile: QuantSpec) -> str:
        """Return the strategy for such tiles, and their size."""
        size = {
            "group": f", group_size = {tile.cols}",
            "block": f", block_structure = [{tile.rows}, {tile.cols}]",
        }
        return f"strategy = {tile.granularity!r}{size.get(tile.granularity, '')}"

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


class SmallFloats(PackedFloats):
    """Groups in fp4 or fp6, several codes in ``weight_packed``; global scales divide."""

    name = METHOD
    codes = WORDS
    names = PackedNames(
        second="weight_global_scale", input_scale=("input_global_scale",), divides=True
    )

    def _level(self, stored: Tensor) -> Tensor:
        """Return a second scale as a multiplier; NaN for an infinite divisor, which is none."""
        import torch

        return torch.where(stored.isinf(), torch.nan, super()._level(stored))

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return why the headers contradict ``scheme``, or what of the weight is missing."""
        if wrong := super().misfit(scheme, tensors):
            return wrong
        facts = LayerFacts(prefix=self.name, stored=tensors)
        n, k = self.weight_shape(scheme, facts)
        # The scale of an input is asked for where it is used, and not to decode the weight.
        slots = self.slots(scheme.weight_only(), n, k, facts)
        faults = tuple(fault for slot in slots for fault in slot_faults(slot, tensors))
        beside = f"{self.codes} {list(tensors[self.codes].shape)}"
        return Misfit(faults=faults, stated=f"{scheme} has beside {beside}") if faults else None


def _floats(scheme: Scheme, stated: str) -> Floats:
    return Floats(scheme.weight, scheme.activation, stated)


# How codes are stored, by a word of Format -> who reads them; "plain" is read by nobody.
_READERS: Mapping[str, Callable[[Scheme, str], Reader]] = MappingProxyType(
    {"floats": _floats, "integers": Integers, "words": PackedIntegers, "bytes": SmallFloats}
)


def make_reader(group: Group) -> Reader | None:
    """Return the reader of the layers of ``group``; None where they are stored plain."""
    if group.scheme is None:
        return None
    return _READERS[group.storage](group.scheme, group.source)
