"""Weights that hold all experts of a layer, seen as loading sees them: one expert at a time.

>>> blocks = StoredTensor(dtype="uint8", shape=(4, 8, 2, 16))
>>> stack = find_stack("down_proj", "_", 4, False, {"weight_blocks": blocks})
>>> stack.one["weight_blocks"].shape
(8, 2, 16)
>>> stack.slot(Slot(name="weight_scales", shapes=((8, 2),), dtypes=("uint8",))).spellings
('down_proj_scales',)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from quantdock.checkpoint.expert_names import PARTS, ROLES, SHAPE, SUFFIXES, has_halves
from quantdock.methods.slot import Slot
from quantdock.schemes import StoredTensor

_WEIGHT = "weight"
_LONE = ((), (1,), (1, 1), (1, 1, 1))  # one scale for all experts
_ONE_SHAPE = (3,)  # of a tensor that states (experts, N, K)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """How the tensors of one weight hold all experts.

    Attributes:
        weight: its name. number: of experts.
        joint: what stands between the weight's name and what follows it in files, "_" or ".".
        is_turned: weights are plain, and stored [K, N].
        one: what one expert has; of gate alone, where gate and up lie one after the other.
        halves: 2 where ``one`` is of gate alone, or up; else 1.
        tensors: those of all, by what files call them.
    """

    weight: str
    number: int
    joint: str
    is_turned: bool
    one: Mapping[str, StoredTensor]
    halves: int
    tensors: Mapping[str, StoredTensor]

    def slot(self, slot: Slot) -> Slot:
        """Return ``slot``, of one expert, as that of all."""
        own = map(_turned, slot.shapes) if self._turns(slot) else slot.shapes
        shapes = [self._shape(shape) for shape in own]
        if "scale" in slot.name and any(prod(shape) == 1 for shape in slot.shapes):
            shapes += _LONE
            if self.halves > 1:  # a number for gate and up, or one for each
                shapes += [(self.number, 2), (self.number, 2, 1)]
        if slot.name == SHAPE:
            shapes = [(self.number, 2), _ONE_SHAPE]
        told = [name for spelling in slot.spellings for name in self.told(spelling)]
        return replace(slot, name=told[0], aliases=tuple(told[1:]), shapes=tuple(shapes))

    def _turns(self, slot: Slot) -> bool:
        return self.is_turned and slot.name == _WEIGHT

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.halves == 1 or prod(shape) == 1:
            return (self.number, *shape)
        return (self.number, self.halves * shape[0], *shape[1:])

    def told(self, part: str) -> tuple[str, ...]:
        """Return what files may call a tensor of the weight, the usual name first."""
        return _told(self.weight, self.joint, part)


def find_stack(
    weight: str, joint: str, number: int, is_turned: bool, stored: Mapping[str, StoredTensor]
) -> Stack | None:
    """Return how ``stored``, under one weight, holds ``number`` experts; None: it holds one."""
    if not any(len(tensor.shape) > 2 for tensor in stored.values()):
        return None
    one = {part: _of_one(part, tensor) for part, tensor in stored.items()}
    halves = 1
    if is_turned:
        one[_WEIGHT] = replace(one[_WEIGHT], shape=_turned(one[_WEIGHT].shape))
    elif weight in PARTS and has_halves(tensor.shape for tensor in one.values()):
        halves, one = 2, {p: t if p == SHAPE else _half(t) for p, t in one.items()}
    return Stack(
        weight=weight,
        number=number,
        joint=joint,
        is_turned=is_turned,
        one=one,
        halves=halves,
        tensors={_told(weight, joint, part)[0]: tensor for part, tensor in stored.items()},
    )


def are_turned(module: Mapping[str, Mapping[str, StoredTensor]]) -> bool:
    """Return whether the weights of a module, by name, are plain and stored [K, N] for each expert.

    That of down shows it: its rows are as many as those of gate and up together, or half as many.

    >>> def plain(*shape):
    ...     return {"weight": StoredTensor(dtype="bfloat16", shape=shape)}
    >>> are_turned({"gate_up_proj": plain(4, 64, 96), "down_proj": plain(4, 48, 64)})
    True
    >>> are_turned({"gate_up_proj": plain(4, 96, 64), "down_proj": plain(4, 64, 48)})
    False
    """
    plain = {
        ROLES[name]: stored[_WEIGHT].shape
        for name, stored in module.items()
        if _WEIGHT in stored and stored.keys() <= {_WEIGHT, "bias"}
    }
    down = plain.get("down", ())
    for role, parts in (("gate_up", 2), ("gate", 1), ("up", 1)):
        own = plain.get(role, ())
        if len(own) == len(down) == 3:
            return own[2] == parts * down[1] and own[1] == down[2]
    return False


def num_stacked(stored: Iterable[StoredTensor]) -> int:
    """Return the number of experts that most tensors of a module hold."""
    counts = Counter(tensor.shape[0] for tensor in stored if tensor.shape)
    return counts.most_common(1)[0][0] if counts else 0


def _of_one(part: str, tensor: StoredTensor) -> StoredTensor:
    shape = () if prod(tensor.shape) == 1 else tensor.shape[1:]
    if part == SHAPE and tensor.shape == _ONE_SHAPE:
        return replace(tensor, shape=(2,), values=tensor.values[1:])
    return replace(tensor, shape=shape)


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1]


def _half(tensor: StoredTensor) -> StoredTensor:
    if prod(tensor.shape) == 1:
        return tensor
    return replace(tensor, shape=(tensor.shape[0] // 2, *tensor.shape[1:]))


def _told(weight: str, joint: str, part: str) -> tuple[str, ...]:
    if joint == ".":
        return (part,)
    suffixes = [suffix for suffix, told in SUFFIXES.items() if told == part][::-1]
    return tuple(f"{weight}{suffix}" for suffix in suffixes or (f"_{part}",))
