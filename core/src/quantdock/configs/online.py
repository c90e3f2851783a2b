"""Online methods: a 16-bit checkpoint, quantized layer by layer while it loads.

>>> from quantdock.schemes import LayerFacts
>>> config = Fp8PerBlockConfig.online(ignore=["layers.3"], choices={"*.o_proj": "fp8_per_channel"})
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.o_proj")).scheme)
'fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic'
>>> config.scheme_for(LayerFacts(prefix="model.layers.3.mlp.up_proj")).source
"ignore[0] = 'layers.3'"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quantdock.config import QuantizationConfig
from quantdock.configs.matcher import Entry, Matcher, entries
from quantdock.configs.resolution import Resolution, resolve
from quantdock.configs.stored import HEADERS, StoredWeight, stored_weights
from quantdock.errors import ConfigError
from quantdock.formats import DTYPES
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme
from quantdock.schemes.shorthands import PROMISES, SHORTHANDS

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight

NONE = "none"  # the choice that leaves a layer as it is
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_ALIKE = "Name all parts of the layer alike in ignore and in choices."
_LEAVE = "Leave the layer out with ignore, or load a 16-bit checkpoint of this model."
# Layers that stay as they are without being asked, and why.
_LEFT_ALONE = {
    "attention": "attention has no weights of its own",
    "embedding": "online methods leave the embedding alone",
    "head": "online methods leave the head alone",
}


class OnlineConfig(QuantizationConfig):
    """A method that can quantize 16-bit weights at load, to the first of its schemes that runs.

    Attributes:
        online_schemes: in the order of preference; empty: it cannot.
        promises: the name says both formats of the scheme, so that nothing is substituted.
    """

    online_schemes: ClassVar[tuple[Scheme, ...]] = ()
    promises: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._kept: Matcher[None] = Matcher(())
        self._chosen: Matcher[str] = Matcher(())
        self._resolutions: dict[tuple[object, ...], Resolution] = {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Refuse: this is a way to quantize at load, not a way to store weights."""
        raise ConfigError(
            f"A checkpoint says that it is quantized with {cls.name}.",
            why=[f"{cls.name} quantizes 16-bit weights at load; no file is stored in it"],
            todo="Correct quant_method in its config.json; fp8 files say 'fp8'.",
            field="quant_method",
        )

    @classmethod
    def online(cls, ignore: Sequence[str] = (), choices: Mapping[str, str] | None = None) -> Self:
        """Return the config; a layer in ``ignore`` stays as it is whatever ``choices`` say."""
        if not cls.online_schemes:
            return super().online(ignore, choices)
        config = cls()
        config.is_online = True
        config._kept = Matcher(entries("ignore", ignore))
        config._chosen = Matcher(_read_choices(choices or {}))
        return config

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what becomes of a 16-bit layer."""
        kept = self._kept.find(facts, self.packed_modules_mapping)
        chosen = self._chosen.find(facts, self.packed_modules_mapping)
        for match in (kept, chosen):
            if match and match.conflict:
                return Decision.refused(match.conflict, match.source, _ALIKE)
        if kept:
            return Decision.unquantized("the user leaves it as it is", kept.source)
        if facts.kind in _LEFT_ALONE:
            return Decision.unquantized(_LEFT_ALONE[facts.kind], self.name)
        if chosen and chosen.value == NONE:
            return Decision.unquantized("the user leaves it as it is", chosen.source)
        if not chosen and facts.is_router:
            return Decision.unquantized("a router stays exact, since it chooses experts", self.name)
        weights = stored_weights(facts)
        for stored in weights:
            if not DTYPES[stored.weight.dtype].floating:
                because = (
                    f"{stored.name}.weight is stored as {stored.weight.dtype}; only plain floats "
                    "can be quantized at load"
                )
                return Decision.refused(because, HEADERS, _LEAVE)
        word = chosen.value if chosen else self.name
        found = self._resolve(word, facts.kind, weights)
        source = chosen.source if chosen else f"quantization = {self.name!r}"
        promised = self.promises if word == self.name else word in PROMISES
        return Decision.quantized(found.scheme, found.because, source, promised=promised)

    def _resolve(self, word: str, kind: str, weights: Sequence[StoredWeight]) -> Resolution:
        """Return what ``word`` stands for on the bound platform, for a layer of this shape."""
        shape = weights[0].weight.shape if len(weights) == 1 else ()
        n, k = shape if len(shape) == 2 else (None, None)
        key = (word, kind, n, k)
        if key not in self._resolutions:
            listed = self.online_schemes if word == self.name else SHORTHANDS[word]
            schemes = [self.executed(scheme) for scheme in listed]
            self._resolutions[key] = resolve(word, schemes, self.dispatch, kind=kind, n=n, k=k)
        return self._resolutions[key]

    def executed(self, scheme: Scheme) -> Scheme:
        """Return what runs for ``scheme``: itself, unless a platform's config overrides this."""
        return scheme

    def bind(self, dispatch: Dispatch) -> Self:
        """Return self, tied to a platform; what shorthands stand for is asked anew."""
        self._resolutions.clear()
        return super().bind(dispatch)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the one slot of a 16-bit layer: its weight."""
        return (Slot(name="weight", shapes=((n, k),), dtypes=_FLOATS),)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Quantize the weight of each shard by itself; no scale spans two shards."""
        from quantdock.numerics.canonical import join, quantize_weight

        return join([quantize_weight(tensors["weight"], scheme.weight) for tensors in stored])

    def unmatched(self) -> tuple[str, ...]:
        """Return the ignore patterns and choices that have matched no layer so far."""
        return (*self._kept.unmatched(), *self._chosen.unmatched())

    def notes(self) -> tuple[str, ...]:
        """Return what each shorthand turned out to mean here."""
        return tuple(dict.fromkeys(found.because for found in self._resolutions.values()))


class Fp8PerTensorConfig(OnlineConfig):
    """One scale for each weight; activations one a token, or one for all where only that runs."""

    name = "fp8_per_tensor"
    online_schemes = SHORTHANDS["fp8_per_tensor"]


class Fp8PerChannelConfig(OnlineConfig):
    """One scale a weight row and one a token; it promises both, so weight-only is refused."""

    name = "fp8_per_channel"
    online_schemes = SHORTHANDS["fp8_per_channel"]
    promises = True


class Fp8PerBlockConfig(OnlineConfig):
    """One scale a block of 128 x 128 weights and one for 128 features of a token."""

    name = "fp8_per_block"
    online_schemes = SHORTHANDS["fp8_per_block"]


class Mxfp4OnlineConfig(OnlineConfig):
    """fp4 weights with one power-of-two scale for 32 columns; activations as they are."""

    name = "mxfp4_online"
    online_schemes = SHORTHANDS["mxfp4"]


def _read_choices(choices: Mapping[str, str]) -> tuple[Entry[str], ...]:
    """Return the entries of a user's pattern -> shorthand table.

    Raises:
        ConfigError: a shorthand that does not exist.
    """
    known = (*SHORTHANDS, NONE)
    for pattern, word in choices.items():
        if word not in known:
            near = get_close_matches(str(word), known, 1)
            raise ConfigError(
                f"The choice for {pattern!r} is {word!r}, which is no online method.",
                why=[f"known: {', '.join(known)}"],
                todo=f"Did you mean {near[0]!r}?" if near else "Choose one of these.",
                field="choices",
                value=word,
            )
    return tuple(
        Entry(text=pattern, source=f"choices[{pattern!r}] = {word!r}", value=word)
        for pattern, word in choices.items()
    )
