"""What every layer of one plan is decided with: config, platform, dtype, scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantdock.checkpoint.model_facts import stated_dtype
from quantdock.checkpoint.scope import covers
from quantdock.dispatch import Dispatch
from quantdock.kernel import Policy, Problem
from quantdock.plan.layer import Choice, plan_layer
from quantdock.plan.plan import LayerPlan
from quantdock.platform import Platform
from quantdock.registry import dispatch_for
from quantdock.schemes import Decision, LayerFacts

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.registry import MethodChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Decides layers one by one; the kernel of equal problems is chosen once."""

    config: QuantizationConfig
    dispatch: Dispatch
    dtype: str
    scope: str = ""
    decodes: bool = False  # the user asked for no quantization of a quantized checkpoint
    chosen: dict[Problem, Choice] = field(default_factory=dict)

    def plan(
        self,
        facts: LayerFacts,
        n: int | None = None,
        k: int | None = None,
        *,
        decision: Decision | None = None,
        has_bias: bool = False,
    ) -> LayerPlan:
        """Return the plan of one layer; ``decision`` where it was made already."""
        return plan_layer(
            self.config,
            facts,
            n,
            k,
            self.dtype,
            self.dispatch,
            has_bias=has_bias,
            decision=decision or self.decide(facts),
            choices=self.chosen,
        )

    def decide(self, facts: LayerFacts) -> Decision:
        """Return the config's decision, after what the block covers and what the user asked."""
        if not covers(self.scope, facts.prefix):
            return Decision.unquantized(
                "not part of the language model, which the block is for",
                f"config.json: {self.scope}",
            )
        decision = self.config.scheme_for(facts)
        if self.decodes and decision.scheme is not None:
            return Decision.unquantized(
                f"decoded from {decision.scheme} to {self.dtype} at load, as asked",
                "quantization='none'",
            )
        return decision


def bind_config(
    choice: MethodChoice,
    policy: Policy,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
) -> QuantizationConfig:
    """Return the config of ``choice``, tied to its platform and the user's policy.

    Raises:
        ConfigError: the block or an option has an impossible value.
    """
    config = (
        choice.config_class.online(ignore, choices)
        if choice.block is None
        else choice.config_class.from_config(choice.block)
    )
    return config.bind(dispatch_for(choice.platform, policy))


def choose_dtype(config: Mapping[str, Any], platform: Platform) -> str:
    """Return the dtype of activations: the file's where the platform has it, else its first."""
    stated = stated_dtype(config)
    return stated if stated in platform.dtypes else platform.dtypes[0]
