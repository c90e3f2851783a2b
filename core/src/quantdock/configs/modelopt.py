"""modelopt: ModelOpt's checkpoints, in one algorithm for all layers or one for each.

Their settings stand in hf_quant_config.json, newer ones also in config.json under other names.

>>> from quantdock.schemes import LayerFacts
>>> config = ModelOptConfig.from_config({"quant_algo": "FP8", "exclude_modules": ["lm_head"]})
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'fp8_e4m3[*x*] x fp8_e4m3[*x*]'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from quantdock.configs.fields import Fields
from quantdock.configs.header_check import advice
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.matcher import Entry, Match
from quantdock.configs.mixed_checkpoint import MixedCheckpointConfig, Reader, ReaderCache, fits
from quantdock.configs.modelopt_layers import ALGORITHMS, METHOD, MIXED, not_yet, read_algorithm
from quantdock.errors import ConfigError
from quantdock.schemes import Decision, LayerFacts, Scheme

_BY_NAME = "quantized_layers"
# What else such a block says of itself: config_groups repeats the algorithm in other words.
_KNOWN = ("producer", "config_groups", "pre_quant_scale", "group_size", "has_zero_point")


class ModelOptConfig(MixedCheckpointConfig):
    """A checkpoint that says ``modelopt``, or that ModelOpt gives itself away as having written.

    Attributes:
        algorithms: those that this name stands for, as prefixes; empty: all.
    """

    name = METHOD
    algorithms: ClassVar[tuple[str, ...]] = ()
    _others: Mapping[str, Reader] | None = (
        None  # of each algorithm, once a layer contradicts its own
    )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a ModelOpt checkpoint, in either shape of its settings.

        Raises:
            ConfigError: a known field has an impossible value, or the algorithm is none of those
                that this name stands for.
            MethodNotYetError: an algorithm is known and cannot be run yet.
        """
        fields = Fields(config, cls.name)
        for name in _KNOWN:
            fields.get(name)
        usual, by_name = cls._readers(fields, config)
        return cls(
            usual,
            by_name=by_name,
            ignored=fields.names("exclude_modules", "ignore"),
            kv_cache=read_kv_cache(fields),
            extra=fields.rest(),
        )

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what a layer's reader makes of it; an error says which algorithm would fit."""
        decision = super().scheme_for(facts)
        if not decision.error or not facts.stored:
            return decision
        if self._others is None:
            self._others = {word: read_algorithm({"quant_algo": word}, word) for word in ALGORITHMS}
        fitting = [word for word, other in self._others.items() if fits(other, facts)]
        words = [f"quant_algo = {word!r}" for word in fitting]
        return replace(decision, todo=advice([words])) if words else decision

    @classmethod
    def _readers(
        cls, fields: Fields, config: Mapping[str, Any]
    ) -> tuple[Match[Reader | None], list[Entry[Reader | None]]]:
        """Return what reads all layers, or each of those that the block names."""
        word, layers = fields.get("quant_algo"), fields.get(_BY_NAME)
        if word is None:
            not_yet("quant_algo", "is missing: no weights are quantized")
        cls._require(str(word))
        if str(word).upper() != MIXED:
            source = "quantization_config"
            return Match(value=read_algorithm(config, source), source=source), []
        if not isinstance(layers, Mapping) or not layers:
            fields.refuse(_BY_NAME, "an object, layer name to its quant_algo", f"it is {MIXED}")
        cache = ReaderCache(read_algorithm)
        entries: list[Entry[Reader | None]] = [
            Entry(
                text=name,
                source=f"{_BY_NAME}[{name!r}]",
                value=cache.reader(block, f"{_BY_NAME}[{name!r}]"),
            )
            for name, block in layers.items()
        ]
        return Match(value=None, source=f"{_BY_NAME}, which does not name it,"), entries

    @classmethod
    def _require(cls, word: str) -> None:
        """Raise if the file's algorithm is not what this name stands for."""
        if cls.algorithms and not word.upper().startswith(cls.algorithms):
            raise ConfigError(
                f"{cls.name} was asked for, and the checkpoint says quant_algo = {word!r}.",
                why=[f"{cls.name} stands for {', '.join(cls.algorithms)}"],
                todo="Leave the option out, or ask for 'modelopt', which reads what the file says.",
                field="quant_algo",
                value=word,
            )


class ModelOptFp8Config(ModelOptConfig):
    """The name for ModelOpt's fp8 algorithms alone."""

    name = "modelopt_fp8"
    algorithms = ("FP8",)


class ModelOptFp4Config(ModelOptConfig):
    """The name for NVFP4, with activations in it or as given."""

    name = "modelopt_fp4"
    algorithms = ("NVFP4", "W4A16_NVFP4")


class ModelOptMxfp8Config(ModelOptConfig):
    """The name for ModelOpt's MXFP8 alone."""

    name = "modelopt_mxfp8"
    algorithms = ("MXFP8",)


class ModelOptMixedConfig(ModelOptConfig):
    """The name for files that name an algorithm for each layer."""

    name = "modelopt_mixed"
    algorithms = (MIXED,)


class PetitNvfp4Config(ModelOptFp4Config):
    """NVFP4 weights whose activations stay as given: no scale of an input is asked for."""

    name = "petit_nvfp4"

    def executed(self, scheme: Scheme) -> Scheme:
        """Return the scheme of the weight alone."""
        return scheme.weight_only()
