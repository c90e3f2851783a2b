"""What the headers of stored tensors get wrong, as facts, and the one way to say them.

Loading, plans, reloading and ``doctor`` ask here.

>>> from quantdock.methods.slot import Slot
>>> from quantdock.schemes import StoredTensor
>>> slot = Slot(name="scales", shapes=((2, 64),), dtypes=("float16",))
>>> wide = StoredTensor(dtype="float16", shape=(64, 2))
>>> [str(fault) for fault in slot_faults(slot, {"scales": wide})]
['scales is [64, 2], not [2, 64]']
>>> [str(fault) for fault in slot_faults(slot, {})]
['scales is missing']
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from quantdock.methods.slot import Slot
from quantdock.schemes import StoredTensor

HeaderKind = Literal["missing", "shape", "dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFault:
    """One fault of one tensor of a layer.

    Attributes:
        tensor: its name after the layer's.
        found: what its header says; of a tensor that is missing, nothing.
        expected: what would fit; of a tensor that is missing, its other spellings.
    """

    kind: HeaderKind
    tensor: str
    found: str = ""
    expected: str = ""

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.tensor} is missing" + (f" (nor {self.expected})" * bool(self.expected))
        return f"{self.tensor} is {self.found}, not {self.expected}"


def slot_faults(slot: Slot, stored: Mapping[str, StoredTensor]) -> Iterator[HeaderFault]:
    """Yield what is wrong with the tensor that is ``stored`` for one slot."""
    name = slot.stored_as(stored)
    if name is None:
        if slot.default is None:
            yield HeaderFault(kind="missing", tensor=slot.name, expected=", ".join(slot.aliases))
        return
    yield from tensor_faults(name, slot, stored[name])


def tensor_faults(name: str, slot: Slot, tensor: StoredTensor) -> Iterator[HeaderFault]:
    """Yield what keeps ``tensor``, which is called ``name``, out of ``slot``."""
    if tensor.dtype not in slot.dtypes:
        expected = " or ".join(slot.dtypes)
        yield HeaderFault(kind="dtype", tensor=name, found=tensor.dtype, expected=expected)
    if tensor.shape not in slot.shapes:
        yield shape_fault(name, tensor, str(list(slot.shape)))


def shape_fault(name: str, tensor: StoredTensor, expected: str) -> HeaderFault:
    """Return the fault of a tensor that has another shape than ``expected``."""
    return HeaderFault(kind="shape", tensor=name, found=str(list(tensor.shape)), expected=expected)
