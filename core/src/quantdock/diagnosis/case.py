"""Case: the checkpoint that is examined, and what is known of it, each fact found out once.

A fact that cannot be had raises the error that says why, whoever asks; the check that owns the
fact reports it, and those that need it are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from quantdock.checkpoint import (
    Checkpoint,
    QuantizationBlock,
    find_quantization,
    open_checkpoint,
)
from quantdock.checkpoint.index import checkpoint_folder
from quantdock.checkpoint.json_file import read_json
from quantdock.checkpoint.model_facts import model_type, num_experts
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.config import QuantizationConfig
from quantdock.configs.matcher import Matcher, entries
from quantdock.diagnosis.report import Outcome
from quantdock.errors import QuantDockError
from quantdock.kernel import Policy
from quantdock.plan import LayerPlan
from quantdock.plan.attention import plan_attention_layers
from quantdock.plan.kv_cache import with_kv_cache
from quantdock.plan.layer_table import Decided, decide_layers, plan_layers
from quantdock.plan.model_source import kept_layers
from quantdock.plan.setting import Setting, bind_config, choose_dtype, make_setting
from quantdock.plan.stored_faults import FaultKind, StoredFault, find_faults
from quantdock.plan.stored_layers import StoredLayer, StoredModel, stored_model
from quantdock.plan.tied_head import plan_tied_head
from quantdock.platform import Platform
from quantdock.registry import MethodChoice, choose_method, get_platform
from quantdock.schemes import Decision, LayerFacts

Tracker = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of the examination; the first group is what would be asked of ``load``.

    Attributes:
        tp: ranks to divide the layers among. base: folder of the 16-bit original.
        layers: pattern of the layers whose values and numbers are looked at; None: all.
        quick: read headers only.
    """

    quantization: str | None = None
    platform: str | Platform | None = None
    dtype: str = "auto"
    kv_cache: str = "auto"
    policy: Policy = field(default_factory=Policy)
    ignore: Sequence[str] = ()
    choices: Mapping[str, str] | None = None
    trust_remote_code: bool = False

    tp: int = 1
    base: str | Path | None = None
    layers: str | None = None
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One stored layer with what becomes of it and the plan to run it.

    ``stored_as`` is what the config says of the stored tensors: the same as ``decision`` unless
    the user asks to decode them at load, or the experts of one layer do not agree.
    """

    stored: StoredLayer
    decision: Decision
    stored_as: Decision
    plan: LayerPlan

    @property
    def facts(self) -> LayerFacts:
        """Return what a config decides by; of stacked experts, what one of them has."""
        return self.stored.asked

    @property
    def prefix(self) -> str:
        """Return the layer's name in the checkpoint."""
        return self.stored.facts.prefix


class Case:
    """The facts of one examination; ``outcomes`` are those of the checks that have ended."""

    def __init__(self, path: str | Path, options: Options, track: Tracker = iter) -> None:
        self.path = path
        self.options = options
        self.track = track
        self.outcomes: list[Outcome] = []

    def fault(self, fact: str) -> QuantDockError | None:
        """Return why a fact cannot be had, or None where it can."""
        try:
            getattr(self, fact)
        except QuantDockError as error:
            return error
        return None

    def get(self, fact: str) -> Any:
        """Return a fact, or None where it cannot be had."""
        return None if self.fault(fact) else getattr(self, fact)

    @cached_property
    def folder(self) -> Path:
        """The folder of the checkpoint."""
        return checkpoint_folder(self.path)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json."""
        return read_json(self.folder / "config.json")

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, its headers read."""
        return open_checkpoint(self.folder)

    @cached_property
    def block(self) -> QuantizationBlock | None:
        """The quantization block; None where the files say nothing and store nothing quantized."""
        found = find_quantization(self.config, self.folder)
        if found is None and (checkpoint := self.get("checkpoint")) is not None:
            refuse_without_block(checkpoint.tensors)
        return found

    @cached_property
    def platform(self) -> Platform:
        """The platform that was asked for, or the best one here."""
        return get_platform(self.options.platform)

    @cached_property
    def choice(self) -> MethodChoice:
        """The method that would load the checkpoint."""
        return choose_method(self.options.quantization, self.block, self.platform)

    @cached_property
    def bound(self) -> QuantizationConfig:
        """The method's config, tied to platform and policy."""
        return self._bind()

    @cached_property
    def listed(self) -> frozenset[str]:
        """Every entry of ignore lists and overrides, as decisions name their source."""
        return frozenset(self._bind().unmatched())

    def _bind(self) -> QuantizationConfig:
        options = self.options
        return bind_config(self.choice, options.policy, options.ignore, options.choices)

    @cached_property
    def dtype(self) -> str:
        """The dtype of activations and unquantized weights."""
        return choose_dtype(self.config, self.choice.platform, self.options.dtype)

    @cached_property
    def setting(self) -> Setting:
        """What every layer is decided with."""
        setting = make_setting(self.bound, self.choice, self.block, self.dtype)
        setting = replace(setting, kept=kept_layers(model_type(self.config)))
        return with_kv_cache(setting, self.options.kv_cache, self.config, self.checkpoint.tensors)

    @cached_property
    def stored(self) -> StoredModel:
        """The layers that the headers show."""
        return stored_model(self.checkpoint.tensors, num_experts(self.config))

    @cached_property
    def decided(self) -> Decided:
        """What is decided of every stored layer."""
        return decide_layers(self.stored, self.setting, self.config)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every stored layer, decided and planned."""
        decided, setting = self.decided, self.setting
        plans = plan_layers(self.stored, setting, decided)
        stored_as = decided.own
        if setting.decodes:
            stored_as = [setting.config.scheme_for(layer.asked) for layer in self.stored.layers]
        rows = zip(self.stored.layers, decided.final, stored_as, plans, strict=True)
        return tuple(Layer(*row) for row in rows)

    @cached_property
    def tied_head(self) -> tuple[LayerPlan, ...]:
        """The head that has no tensor of its own, where there is one."""
        return plan_tied_head(self.stored, self.setting, self.config)

    @cached_property
    def attention(self) -> tuple[LayerPlan, ...]:
        """How keys and values are kept, by attention layer."""
        setting = self.setting
        return plan_attention_layers(self.stored, setting.kv_cache, setting.dtype, setting.kv_shape)

    @cached_property
    def faults(self) -> tuple[StoredFault, ...]:
        """What the headers get wrong, in the order of the layers."""
        config, decodes = self.setting.config, self.setting.decodes
        found = (
            find_faults(layer.stored, layer.stored_as, config, decodes=decodes)
            for layer in self.layers
        )
        return (*(fault for faults in found for fault in faults), *self.decided.faults)

    def faults_of(self, *kinds: FaultKind) -> list[StoredFault]:
        """Return what the headers get wrong in some ways."""
        return [fault for fault in self.faults if fault.kind in kinds]

    @cached_property
    def wanted(self) -> tuple[Layer, ...]:
        """The layers that ``options.layers`` names; all where it names none."""
        if self.options.layers is None:
            return self.layers
        matcher = Matcher(entries("layers", [self.options.layers]))
        return tuple(layer for layer in self.layers if matcher.find(layer.facts))
