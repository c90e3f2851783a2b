"""What every layer of one plan is decided with: config, platform, dtype, scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantdock.checkpoint.model_facts import stated_dtype
from quantdock.checkpoint.scope import covers
from quantdock.dispatch import Dispatch
from quantdock.errors import ConfigError, MethodNotYetError, NothingQuantizedError
from quantdock.kernel import Policy, Selection
from quantdock.plan.attention import plan_attention
from quantdock.plan.layer import Asked, Choice, plan_layer
from quantdock.plan.plan import LayerPlan
from quantdock.platform import Platform
from quantdock.registry import dispatch_for, settle_choices
from quantdock.schemes import UNSTATED, Decision, KVCacheDecision, LayerFacts

if TYPE_CHECKING:
    from quantdock.checkpoint import QuantizationBlock
    from quantdock.config import QuantizationConfig
    from quantdock.registry import MethodChoice

AUTO = "auto"
_ALONE = "Load with quantization='none', or change the ignore list."
_SHORT = {
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Decides layers one by one; the kernel of equal problems is chosen once.

    ``kept`` are last names of layers that are not quantized at load, whatever the config says.
    """

    config: QuantizationConfig
    dispatch: Dispatch
    dtype: str
    scope: str = ""
    decodes: bool = False  # the user asked for no quantization of a quantized checkpoint
    kv_cache: KVCacheDecision = UNSTATED
    kv_shape: tuple[int, int] | None = None  # heads; values of a head's key and value together
    chosen: dict[Asked, Choice] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)  # last name -> why

    def plan(
        self,
        facts: LayerFacts,
        n: int | None = None,
        k: int | None = None,
        *,
        decision: Decision | None = None,
        has_bias: bool = False,
        copies: int = 1,
        equal_groups: bool | None = None,
        experts: tuple[Decision, Decision] | None = None,
        selection: Selection | None = None,
    ) -> LayerPlan:
        """Return the plan of one layer; ``decision`` and ``selection`` where made already."""
        if facts.kind == "attention":
            return plan_attention(facts.prefix, self.kv_cache, self.dtype, self.kv_shape)
        return plan_layer(
            self.config,
            facts,
            n,
            k,
            self.dtype,
            self.dispatch,
            has_bias=has_bias,
            copies=copies,
            equal_groups=equal_groups,
            decision=decision or self.decide(facts),
            experts=experts,
            choices=self.chosen,
            selection=selection,
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
        if decision.scheme is not None and self.kept and self.config.is_online:
            why = self.kept.get(facts.prefix.rpartition(".")[2])
            return Decision.unquantized(why, "quantdock") if why else decision
        return decision


def make_setting(
    config: QuantizationConfig, choice: MethodChoice, block: QuantizationBlock | None, dtype: str
) -> Setting:
    """Return what layers are decided with under ``config``, which ``bind_config`` made."""
    assert config.dispatch is not None, "bind_config binds"
    return Setting(
        config=config,
        dispatch=config.dispatch,
        dtype=dtype,
        scope=block.scope if block else "",
        decodes=choice.dequantize,
    )


def refuse_nothing(
    choice: MethodChoice, decided: Sequence[tuple[str, str]], policy: Policy
) -> None:
    """Raise if quantization, or a kernel for it, was asked for and no layer gets any.

    Args:
        decided: for each layer the kind of its decision, and why it is that.
        policy: the user's.
    Raises:
        NothingQuantizedError: all that was asked for is unquantized.
    """
    if any(kind != "unquantized" for kind, _ in decided):
        return
    reasons = dict.fromkeys(because for _, because in decided)
    if policy.require is not None:
        raise NothingQuantizedError(
            f"The kernel {policy.require} was required, and no layer would be quantized.",
            why=[choice.because, *list(reasons)[:8]],
            todo="Drop the requirement (--require), or name a method with quantization=...",
        )
    if choice.name != "none" and not choice.dequantize:
        raise NothingQuantizedError(
            f"{choice.name} was asked for, and no layer of this checkpoint would be quantized.",
            why=[choice.because, *list(reasons)[:8]],
            todo=_another(choice) if choice.is_online else _ALONE,
        )


def _another(choice: MethodChoice) -> str:
    """Return what to do where an online method finds no layer that it is for."""
    if not choice.at_load:
        return _ALONE
    return (
        "Load with quantization='none', change the ignore list, or name a method that is for such "
        f"layers, such as {choice.at_load!r}."
    )


def bind_config(
    choice: MethodChoice,
    policy: Policy,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
) -> QuantizationConfig:
    """Return the config of ``choice``, tied to its platform and the user's policy.

    Raises:
        ConfigError: the block or an option has an impossible value, or the file is quantized and
            an option is for those that are not.
        MethodLookupError: a choice that the platform does not run.
        MethodNotYetError: the block is of a kind of its method that is known and not supported.
    """
    if choice.name == "none" and ignore:
        raise ConfigError(
            f"ignore={list(ignore)} leaves layers out of quantization, and none is asked for.",
            why=[choice.because],
            todo="Name a method with quantization=..., such as 'fp8', or leave ignore out.",
            field="ignore",
        )
    if choice.block is None:
        settled = settle_choices(choices or {}, choice.platform)
        config = choice.config_class.online(ignore, settled)
    elif ignore or choices:
        raise ConfigError(
            f"ignore and choices cannot change a checkpoint that is stored in {choice.name}.",
            why=[choice.because, "they say what is quantized at load, of a 16-bit checkpoint"],
            todo="Leave them out, or load the 16-bit original of this model with them.",
        )
    else:
        config = _read(choice, choice.block)
        config.repacked = config.repacked if choice.asked else None
    return config.bind(dispatch_for(choice.platform, policy))


def _read(choice: MethodChoice, block: Mapping[str, Any]) -> QuantizationConfig:
    """Return the config of ``block``; an error for one of a kind to come says where it stands."""
    try:
        return choice.config_class.from_config(block)
    except MethodNotYetError as error:
        why = [*error.why, choice.because]
        raise MethodNotYetError(error.what, why=why, todo=error.todo, **error.facts) from error


def choose_dtype(config: Mapping[str, Any], platform: Platform, asked: str = AUTO) -> str:
    """Return the dtype of activations: the user's; else the file's, or the platform's first.

    Raises:
        ConfigError: the platform does not compute in what is asked.
    """
    word = str(asked).removeprefix("torch.").lower()
    word = _SHORT.get(word, word)
    if word == AUTO:
        stated = stated_dtype(config)
        return stated if stated in platform.dtypes else platform.dtypes[0]
    if word not in platform.dtypes:
        raise ConfigError(
            f"dtype={str(asked) or repr(asked)} cannot be used on {platform}.",
            why=[f"it computes in {', '.join(platform.dtypes)}"],
            todo="Choose one of these, or leave dtype='auto'.",
            field="dtype",
            value=asked,
        )
    return word
