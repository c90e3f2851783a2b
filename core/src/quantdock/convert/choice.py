"""Which dialect a set of layers is written in, where nobody has named one."""

from __future__ import annotations

from collections.abc import Mapping

from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.dialect import Dialect
from quantdock.convert.expert_blocks import EXPERT_BLOCKS
from quantdock.convert.features import lacking
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.convert.goals import GOALS
from quantdock.convert.modelopt import MODELOPT
from quantdock.convert.quark import QUARK
from quantdock.errors import SaveError
from quantdock.formats import ELEMENTS
from quantdock.schemes import Scheme

# Names of methods whose files are those of another.
_FILES_OF = {
    "gptq_marlin": "gptq",
    "awq_marlin": "awq",
    "quark_mxfp4": "quark",
    "petit_nvfp4": "modelopt",
    **dict.fromkeys(
        ("modelopt_fp4", "modelopt_fp8", "modelopt_mxfp8", "modelopt_mixed"), "modelopt"
    ),
}


def able_to_hold(layers: Mapping[str, Scheme], *, but: str = "") -> tuple[str, ...]:
    """Return the words for --to that name a dialect, other than ``but``, with words for all."""
    return tuple(
        word
        for word, goal in GOALS.items()
        if word == goal.dialect.name != but and not goal.dialect.for_layers(layers).why_not(layers)
    )


def word_for(layers: Mapping[str, Scheme], dialect: Dialect) -> str:
    """Return the word for --to that makes 16-bit layers in ``dialect`` most like these.

    That is its first word for as many bits, with inputs quantized or not; else its own name.
    """
    kinds = {_kind(scheme) for scheme in layers.values()}
    words = (word for word, goal in GOALS.items() if goal.dialect.name == dialect.name)
    like = (w for w in words if w != dialect.name and {_kind(GOALS[w].scheme(w))} == kinds)
    return next(like, dialect.name)


def _kind(scheme: Scheme) -> tuple[int, bool, bool]:
    element = ELEMENTS[scheme.weight.element]
    return element.bits, element.is_float, scheme.activation is not None


def choose_dialect(layers: Mapping[str, Scheme], method: str = "") -> Dialect:
    """Return the dialect for layers (prefix -> scheme): that of ``method``, if it holds them.

    Else blocks go by transformers' own dialect, and all else by compressed-tensors, if that has
    words for them. Second scales that multiply go by ModelOpt's, which loses none of them.

    Raises:
        SaveError: no dialect has words for all of them.
    """
    are_blocks = all(scheme.weight.granularity == "block" for scheme in layers.values())
    usual: tuple[Dialect, ...] = (
        (FINE_GRAINED, COMPRESSED) if are_blocks else (COMPRESSED, FINE_GRAINED)
    )
    if any(scheme.weight.second is not None for scheme in layers.values()):
        usual = (MODELOPT, *usual)
    name = _FILES_OF.get(method, method)
    known = (EXPERT_BLOCKS, *(goal.dialect for goal in GOALS.values()))
    own = [dialect for dialect in known if dialect.name == name]
    why: list[str] = []
    versions = [d.for_layers(layers) for d in dict.fromkeys((*own, *usual, QUARK))]
    for dialect in versions:
        reasons = dialect.why_not(layers)
        if not reasons:
            return dialect
        why += reasons[:1]
    raise SaveError(
        "No checkpoint format can hold the schemes of these layers.",
        why=list(dict.fromkeys(lacking(versions, layers))) or list(dict.fromkeys(why)),
        todo=f"{_from_original(layers)}Copy the checkpoint the model was loaded from, or load it "
        "with quantization='none' and save that.",
    )


def _from_original(layers: Mapping[str, Scheme]) -> str:
    """Return the command that writes such weights of a 16-bit model; empty: there is none."""
    weights = {scheme.weight for scheme in layers.values()}
    word = next(
        (word for word, goal in GOALS.items() if goal.fixed and {goal.fixed.weight} == weights), ""
    )
    return f"Write such weights alone: quantdock convert IN OUT --to {word}. Or: " if word else ""
