"""GroupSetting: the four words by which GPTQ, AWQ and AutoRound files describe integer weights.

>>> setting = GroupSetting(bits=4, group_size=128, sym=False, desc_act=True)
>>> str(setting), str(setting.spec)
('bits = 4, group_size = 128, sym = False, desc_act = True', 'uint4[1x128]:zero:act-order')
>>> str(GroupSetting(bits=8, group_size=None, sym=True).spec)
'int8[1x*]'
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.formats import QuantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetting:
    """How the integer weights of a layer are encoded.

    Attributes:
        group_size: input columns that share a scale; None: all of them.
        sym: whether every zero point is the middle of the codes.
        desc_act: whether an index names each column's group.
    """

    bits: int
    group_size: int | None
    sym: bool
    desc_act: bool = False

    @property
    def spec(self) -> QuantSpec:
        """Return the encoding of the weight: signed if it is symmetric, else with zero points."""
        return QuantSpec(
            element=f"int{self.bits}" if self.sym else f"uint{self.bits}",
            rows=1,
            cols=self.group_size,
            zero=not self.sym,
            act_order=self.desc_act and self.group_size is not None,
        )

    @property
    def block(self) -> dict[str, int | bool]:
        """Return the fields of a block that says this."""
        return {
            "bits": self.bits,
            "group_size": -1 if self.group_size is None else self.group_size,
            "sym": self.sym,
            "desc_act": self.desc_act,
        }

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.block.items())
