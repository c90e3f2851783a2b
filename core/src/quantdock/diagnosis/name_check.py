"""Check 1: the names of method and platform mean something here; plugins that failed are named."""

from __future__ import annotations

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.registry import failures, resolve_method


def examine(case: Case) -> Result:
    """Return what the method's name resolves to; a name that does not raises what may be meant."""
    platform, choice = case.platform, case.choice
    found = resolve_method(choice.name, choice.platform)
    return Result(
        summary=f"{choice.name} on {choice.platform}: {choice.because}",
        findings=(*map(note, choice.notes), *_unused_plugins()),
        details={
            "asked": case.options.quantization,
            "method": choice.name,
            "config": choice.config_class.__name__,
            "distribution": found.distribution,
            "platform": str(choice.platform),
            "platform_asked": str(platform),
            "dequantize": choice.dequantize,
            "online": choice.is_online,
        },
    )


def _unused_plugins() -> list[Finding]:
    """Return a warning for each installed plugin that could not be loaded."""
    return [
        Finding(
            level="warn",
            what=f"The plugin {failure.who} could not be used.",
            why=(failure.reason,),
            todo="Repair or uninstall it; what it offers is missing here.",
            names=(failure.distribution,),
        )
        for failure in failures()
        if failure.is_fatal
    ]
