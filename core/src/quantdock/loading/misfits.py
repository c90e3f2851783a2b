"""What headers show to be wrong with what is stored of one weight, by the names of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quantdock.checkpoint.header import TensorEntry
from quantdock.loading.expert_slices import usual_name
from quantdock.methods.header_faults import HeaderFault, slot_faults
from quantdock.methods.slot import Slot


def find_misfits(
    prefix: str, slots: Iterable[Slot], under: Mapping[str, TensorEntry]
) -> dict[str, str]:
    """Return what is wrong with the weight at ``prefix``, by the tensor of the file.

    That may be one of all experts, of which the weight has a part.

    Args:
        under: what is stored of the weight.
    """
    stored = {last: entry.stored for last, entry in under.items()}
    faults = (fault for slot in slots for fault in slot_faults(slot, stored))
    return dict(_told(prefix, fault, under) for fault in faults)


def _told(prefix: str, fault: HeaderFault, under: Mapping[str, TensorEntry]) -> tuple[str, str]:
    if fault.kind == "missing":
        name = usual_name(prefix, fault.tensor, under)
        others = f" (nor {fault.expected})" if fault.expected else ""
        return name, f"{name} is in no file{others}"
    name = under[fault.tensor].name
    part = "" if name == f"{prefix}.{fault.tensor}" else f", a part of {name}"
    return name, f"{prefix}.{fault}{part}"
