"""Goals: the words for --to, the schemes they stand for, and the dialects that write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from quantdock.configs.packed_floats import mx_spec
from quantdock.convert.awq import AWQ
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.dialect import Dialect
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.convert.gptq import GPTQ
from quantdock.convert.modelopt import MODELOPT
from quantdock.convert.quark import QUARK
from quantdock.convert.w8a8_int8 import W8A8_INT8
from quantdock.errors import ConfigError
from quantdock.formats import QuantSpec
from quantdock.schemes import Scheme
from quantdock.schemes.shorthands import SHORTHANDS

WHOLE_ROW = -1  # a group size as users and files write "all of K"
BITS, GROUP_SIZE = "--bits", "--group-size"
SYMMETRY = {True: "--symmetric", False: "--asymmetric"}
_TOKEN = QuantSpec(element="int8", rows=1, dynamic=True)
_TOKEN_WITH_ZERO = replace(_TOKEN, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Which integers a user asks for; None: what is usual for the word."""

    bits: int | None = None
    group_size: int | None = None  # columns that share a scale; WHOLE_ROW: all
    symmetric: bool | None = None

    def given(self) -> Iterator[str]:
        """Yield each option that was asked for, as it is typed."""
        if self.bits is not None:
            yield f"{BITS} {self.bits}"
        if self.group_size is not None:
            yield f"{GROUP_SIZE} {self.group_size}"
        if self.symmetric is not None:
            yield SYMMETRY[self.symmetric]


USUAL = Integers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one word for --to means: the scheme of its layers, and how they are written.

    Attributes:
        fixed: the scheme, where there is nothing to choose.
        bits, symmetries: that may be asked for, the usual first.
        group_size: the usual one. takes_groups: whether another may be asked for.
        takes_experts: that are stored one by one, without being named by a choice.
        note: what a user should know of it.
        quantizes_input: to int8, one scale a token; "asymmetric" is then said of the input.
    """

    dialect: Dialect
    fixed: Scheme | None = None
    bits: tuple[int, ...] = ()
    group_size: int = 128
    takes_groups: bool = True
    symmetries: tuple[bool, ...] = (True, False)
    quantizes_input: bool = False
    takes_experts: bool = False
    note: str = ""

    def scheme(self, word: str, asked: Integers = USUAL) -> Scheme:
        """Return the scheme that ``asked`` makes of ``word``, the name of this goal.

        Raises:
            ConfigError: an option that it does not have.
        """
        if self.fixed is not None:
            for option in asked.given():
                raise _no_choice(word, option, f"it is always {self.fixed}")
            return self.fixed
        bits = self._bits(word, asked.bits)
        symmetric = self.symmetries[0] if asked.symmetric is None else asked.symmetric
        if symmetric not in self.symmetries:
            raise _no_choice(
                word, SYMMETRY[symmetric], f"it is always {SYMMETRY[not symmetric][2:]}"
            )
        cols = self._columns(word, asked.group_size)
        weight = QuantSpec(element=f"int{bits}", rows=1, cols=cols)
        if self.quantizes_input:
            return Scheme(weight=weight, activation=_TOKEN if symmetric else _TOKEN_WITH_ZERO)
        if not symmetric:
            weight = replace(weight, element=f"uint{bits}", zero=True)
        return Scheme(weight=weight)

    def _bits(self, word: str, asked: int | None) -> int:
        if asked is None:
            return self.bits[0]
        if asked not in self.bits:
            known = ", ".join(map(str, sorted(self.bits)))
            usual = f"; {self.bits[0]} where it is left out" if len(self.bits) > 1 else ""
            raise _no_choice(word, f"{BITS} {asked}", f"known: {known}{usual}")
        return asked

    def _columns(self, word: str, asked: int | None) -> int | None:
        """Return how many columns share a scale; None: all of them."""
        size = self.group_size if asked is None else asked
        if size != self.group_size and not self.takes_groups:
            raise _no_choice(word, f"{GROUP_SIZE} {size}", "a scale serves a whole row")
        if size < 1 and size != WHOLE_ROW:
            why = "it is positive, or -1 for whole rows"
            raise _no_choice(word, f"{GROUP_SIZE} {size}", why)
        return None if size == WHOLE_ROW else size


def _no_choice(word: str, option: str, why: str) -> ConfigError:
    name, _, value = option.partition(" ")
    return ConfigError(
        f"{word} cannot be written with {option}.",
        why=[why],
        todo=f"Leave {name} out, or choose another --to.",
        field=name,
        value=value,
    )


def _fixed(word: str, dialect: Dialect) -> Goal:
    return Goal(dialect=dialect, fixed=SHORTHANDS[word][0])


def _small(dialect: Dialect, scheme: Scheme, note: str = "") -> Goal:
    return Goal(dialect=dialect, fixed=scheme, takes_experts=True, note=note)


_MXFP8_INPUT = SHORTHANDS["mxfp8"][0].activation
_MXFP4 = SHORTHANDS["mxfp4"][0]
_W4A4 = replace(_MXFP4, activation=replace(_MXFP4.weight, dynamic=True))
_NVFP4 = SHORTHANDS["nvfp4"][0].weight_only()
_MXFP6 = Scheme(weight=mx_spec("fp6_e2m3"))
_AT_RUN_TIME = "inputs stay as they are; --to {} quantizes them, too, at run time"
_CALIBRATED = "inputs stay as they are: those in NVFP4 need a calibrated scale, and no data is used"
GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "fp8_per_tensor": _fixed("fp8_per_tensor", COMPRESSED),
        "fp8_per_channel": _fixed("fp8_per_channel", COMPRESSED),
        "fp8_per_block": _fixed("fp8_per_block", FINE_GRAINED),
        "mxfp8": _fixed("mxfp8", COMPRESSED),
        "mxfp6": _small(COMPRESSED, _MXFP6, _AT_RUN_TIME.format("mxfp6a8")),
        "mxfp6a8": _small(COMPRESSED, replace(_MXFP6, activation=_MXFP8_INPUT)),
        "mxfp4": _small(COMPRESSED, _MXFP4, _AT_RUN_TIME.format("mxfp4a4")),
        "mxfp4a4": _small(COMPRESSED, _W4A4),
        "nvfp4": _small(COMPRESSED, _NVFP4, _CALIBRATED),
        "modelopt": _small(MODELOPT, _NVFP4, _CALIBRATED),
        "quark": _small(QUARK, _W4A4),
        "gptq": Goal(dialect=GPTQ, bits=(4, 2, 3, 8)),
        "awq": Goal(dialect=AWQ, bits=(4,), symmetries=(False, True)),
        "compressed-tensors": Goal(dialect=COMPRESSED, bits=(4, 2, 3, 5, 6, 7, 8)),
        "w4a16": Goal(dialect=COMPRESSED, bits=(4,)),
        "w8a16": Goal(dialect=COMPRESSED, bits=(8,), group_size=WHOLE_ROW),
        "w8a8": Goal(
            dialect=COMPRESSED,
            bits=(8,),
            group_size=WHOLE_ROW,
            takes_groups=False,
            quantizes_input=True,
        ),
        "w8a8_int8": Goal(
            dialect=W8A8_INT8,
            bits=(8,),
            group_size=WHOLE_ROW,
            takes_groups=False,
            symmetries=(True,),
            quantizes_input=True,
        ),
    }
)
