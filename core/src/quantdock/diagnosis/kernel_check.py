"""Check 7: which kernel runs each scheme, and every reason against the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pkgutil import resolve_name

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.elsewhere import faster_platforms
from quantdock.diagnosis.naming import name_layers
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.errors import PlatformError
from quantdock.kernel import Problem, Rejection
from quantdock.plan import LayerPlan
from quantdock.problem import EXPERTS
from quantdock.registry import failures
from quantdock.registry.settings import KERNEL, ONLY, PLATFORM, PREFER, STRICT
from quantdock.registry.tuners import find_tuner, get_tuner
from quantdock.schemes import parse_scheme
from quantdock.user_cache import CACHE


def examine(case: Case) -> Result:
    """Return the kernels that were chosen, those that cannot be, and what speaks against others."""
    plans = [layer.plan for layer in case.layers if layer.plan.decision == "quantized"]
    chosen = Counter(plan.kernel or "none" for plan in plans)
    told = ", ".join(f"{name} ({count:,} layers)" for name, count in chosen.items())
    return Result(
        summary=told or "no layer needs one",
        findings=(
            *_lost_answers(),
            *_lacking(case, plans),
            *_unbuildable(case, plans),
            *_not_preferred(case, plans),
            *_references(case, plans),
            *_rejected(plans),
            *_tuned(case, plans),
            *_settings(),
        ),
        details={
            "kernels": dict(chosen),
            "rejected": {
                f"{kernel}, {scheme}": list(reasons)
                for (kernel, scheme), reasons in _reasons(plans).items()
            },
        },
    )


def _lost_answers() -> Iterator[Finding]:
    """Yield what plugins that are loaded failed to say, such as which kernels they have."""
    for failure in failures():
        if failure.stage == "answer":
            yield Finding(
                level="warn",
                what=f"An answer of the plugin {failure.who} was lost.",
                why=(failure.reason,),
                todo="Repair or update it; what it would have offered is missing here.",
                names=(failure.distribution,),
            )


def _lacking(case: Case, plans: list[LayerPlan]) -> Iterator[Finding]:
    """Yield the layers that nothing here can run, with what each kernel says."""
    platform, required = case.choice.platform, case.setting.dispatch.policy.require
    alike: dict[object, list[LayerPlan]] = {}
    for plan in plans:
        if plan.lacks_kernel:
            alike.setdefault((plan.scheme, plan.kernel_note, plan.rejected), []).append(plan)
    for members in alike.values():
        first, names = members[0], [plan.prefix for plan in members]
        who = f"the required kernel {required} cannot run" if required else "no kernel runs"
        yield Finding(
            level="fail",
            what=f"{name_layers(names)}: {who} {first.scheme} on {platform}.",
            why=tuple(_told(rejection) for rejection in first.rejected),
            todo=first.kernel_note,
            names=tuple(names),
        )


def _told(rejection: Rejection) -> str:
    reasons = "; ".join(rejection.reasons)
    return f"{rejection.kernel}: {reasons}" if rejection.kernel else reasons


def _unbuildable(case: Case, plans: list[LayerPlan]) -> Iterator[Finding]:
    """Yield chosen kernels whose code cannot be made to run on this machine.

    Of one that runs experts whole only the code is looked for: headers do not show all that it is
    made for.
    """
    if case.options.quick or case.choice.platform.described:
        return
    kernels = {kernel.name: kernel for kernel in case.setting.dispatch.kernels}
    firsts = {(plan.kernel, _executed(plan)): plan for plan in plans if plan.kernel in kernels}
    for (name, scheme), plan in firsts.items():
        assert name is not None, "its kernel is among those offered"
        try:
            made = resolve_name(kernels[name].target)
            if EXPERTS not in kernels[name].kinds:
                made(_problem(case, plan))
        except Exception as error:
            yield Finding(
                level="fail",
                what=f"The kernel {name} was chosen for {scheme} and cannot be made.",
                why=(f"{type(error).__name__}: {' '.join(str(error).split())}",),
                todo=f"Repair the package that brings it, or require another ({KERNEL}).",
                names=(name,),
            )


def _problem(case: Case, plan: LayerPlan) -> Problem:
    """Return what a layer's kernel was chosen for."""
    n = plan.n or 0
    return Problem(
        scheme=parse_scheme(_executed(plan)),
        n=n,
        k=plan.k,
        shards=(n,),
        dtype=case.dtype,
        repacked=case.setting.config.repacked,
    )


def _executed(plan: LayerPlan) -> str:
    """Return the scheme that runs, which may be a substitute."""
    return plan.substitution.target if plan.substitution else plan.scheme or ""


def _not_preferred(case: Case, plans: list[LayerPlan]) -> Iterator[Finding]:
    wanted = case.setting.dispatch.policy.prefer
    missed = [plan for plan in plans if wanted and plan.kernel not in (wanted, None)]
    if missed:
        reasons = next((r.reasons for r in missed[0].rejected if r.kernel == wanted), ())
        names = [plan.prefix for plan in missed]
        yield Finding(
            level="warn",
            what=f"{name_layers(names)}: the preferred kernel {wanted} was not taken.",
            why=reasons or ("no kernel of that name is offered here",),
            todo="Drop the preference, or require the kernel to stop here.",
            names=tuple(names),
        )


def _references(case: Case, plans: list[LayerPlan]) -> Iterator[Finding]:
    """Yield where plain torch runs although a device, here or elsewhere, has a kernel."""
    references = {k.name: k for k in case.setting.dispatch.kernels if k.is_reference}
    slow = {plan.scheme: plan for plan in plans if plan.kernel in references}
    for scheme, plan in slow.items():
        here, elsewhere = faster_platforms(case.choice.platform, plan, case.dtype)
        speed = references[plan.kernel or ""].note
        if here:
            yield Finding(
                level="warn",
                what=f"{scheme} runs in plain torch, and this machine has a kernel for it.",
                why=here,
                todo=f"Choose that platform (--platform, or {PLATFORM}).",
            )
        yield note(f"{scheme} runs in plain torch ({speed})", *elsewhere)


def _rejected(plans: list[LayerPlan]) -> Iterator[Finding]:
    for (kernel, scheme), reasons in _reasons(plans).items():
        yield note(f"{kernel} was not taken for {scheme}: {'; '.join(reasons)}")


def _reasons(plans: list[LayerPlan]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (kernel, scheme) -> every reason against it, over all layers that have a kernel."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for plan in plans:
        for rejection in plan.rejected if plan.kernel else ():
            known = found.setdefault((rejection.kernel, plan.scheme or ""), {})
            known.update(dict.fromkeys(rejection.reasons))
    return {key: tuple(reasons) for key, reasons in found.items()}


def _tuned(case: Case, plans: list[LayerPlan]) -> Iterator[Finding]:
    """Yield what is known of this device's ways to compute, where kernels have a choice."""
    platform = case.choice.platform
    if case.options.quick or platform.described or find_tuner(platform) is None:
        return
    try:
        tuner = get_tuner(platform)
    except PlatformError as error:
        yield note(f"{error.what} {'; '.join(error.why)}")
        return
    kinds = {(p.kernel, _executed(p)): _problem(case, p) for p in plans if p.kernel}
    if any(not tuner.why_not(kernel or "", problem) for (kernel, _), problem in kinds.items()):
        yield note(tuner.state())


def _settings() -> Iterator[Finding]:
    """Yield the settings of the environment that have a say in the choice."""
    for name in (KERNEL, PLATFORM, PREFER, ONLY, STRICT, CACHE):
        if value := os.environ.get(name, "").strip():
            yield note(f"{name}={value} is set")
