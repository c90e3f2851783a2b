"""Check 3: what the schemes need of the platform, what runs instead, and in which dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quantdock.checkpoint.model_facts import stated_dtype
from quantdock.diagnosis.case import Case
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.formats import DTYPES
from quantdock.plan.plan import show_bytes
from quantdock.schemes import Scheme, parse_scheme

_NARROW, _WIDE = "float16", "bfloat16"  # the same size; the second one reaches as far as float32
_LARGEST_NARROW = 65504


def examine(case: Case) -> Result:
    """Return schemes and dtype on the platform; raises where it does not have the dtype asked."""
    dtype, platform = case.dtype, case.choice.platform
    schemes = Counter(layer.plan.scheme for layer in case.layers if layer.plan.scheme)
    told = ", ".join(f"{scheme} ({count:,} layers)" for scheme, count in schemes.items())
    how = "as asked" if case.options.dtype != "auto" else "auto"
    return Result(
        summary=f"{platform}, {dtype} activations ({how}); {told or 'no layer is quantized'}",
        findings=(*_schemes(case, schemes), *_dtype(case), *_memory(case)),
        details={
            "features": sorted(platform.features),
            "dtypes": list(platform.dtypes),
            "dtype": dtype,
            "schemes": dict(schemes),
            "described": platform.described,
        },
    )


def _schemes(case: Case, schemes: Counter[str]) -> Iterator[Finding]:
    """Yield what runs instead of each scheme, and which features would allow more."""
    if case.choice.platform.described:
        yield note(f"{case.choice.platform} is described: it is not this machine, nothing runs")
    swaps = {
        layer.plan.scheme: layer.plan.substitution
        for layer in case.layers
        if layer.plan.substitution
    }
    for scheme, swap in swaps.items():
        yield note(f"{scheme} runs as {swap.target}", swap.why, f"accuracy: {swap.accuracy}")
    for scheme in schemes:
        for reason in _lacking(case, parse_scheme(scheme)):
            yield note(reason)


def _lacking(case: Case, scheme: Scheme) -> Iterator[str]:
    dispatch = case.setting.dispatch
    for kernel in dispatch.kernels:
        missing = sorted(kernel.requires - dispatch.platform.features)
        if missing and not kernel.why_not_scheme(scheme):
            yield (
                f"kernel {kernel.name} runs {scheme} on devices with {', '.join(missing)}, "
                f"which {dispatch.platform} lacks"
            )


def _dtype(case: Case) -> Iterator[Finding]:
    """Yield what is risky or surprising about the dtype of activations."""
    stated, dtype, platform = stated_dtype(case.config), case.dtype, case.choice.platform
    if case.options.dtype == "auto" and stated not in (None, dtype):
        yield Finding(
            level="warn",
            what=f"config.json states {stated}, and {dtype} is used.",
            why=(f"{platform} computes in {', '.join(platform.dtypes)}",),
            todo=f"Say --dtype {dtype} if that is meant, or choose another platform.",
        )
    known = list(_known_wide(case, stated))
    if dtype == _NARROW and known:
        yield Finding(
            level="warn",
            what=f"The model is known as {_WIDE} and would run in {_NARROW}.",
            why=(*known, f"{_NARROW} ends at {_LARGEST_NARROW}; larger activations become inf"),
            todo=f"Use --dtype {_WIDE} or float32; checks 6 and 8 look for values out of range.",
        )


def _known_wide(case: Case, stated: str | None) -> Iterator[str]:
    if stated == _WIDE:
        yield f"config.json states {_WIDE}"
    plain = Counter(
        entry.dtype for entry in case.checkpoint.tensors.values() if DTYPES[entry.dtype].floating
    )
    if plain[_WIDE]:
        yield f"{plain[_WIDE]:,} tensors are stored as {_WIDE}"


def _memory(case: Case) -> Iterator[Finding]:
    has = case.choice.platform.memory_bytes
    layers = sum(layer.plan.bytes_memory or 0 for layer in case.layers)
    need = layers + case.stored.bytes_other
    if has is not None and need > has:
        yield Finding(
            level="warn",
            what=f"The weights take {show_bytes(need)}, {case.choice.platform} has "
            f"{show_bytes(has)}.",
            todo="Divide the model among devices, or choose a smaller format.",
        )
