"""Check 8: one prompt runs through the model; each layer's kernel against what its scheme means.

With a 16-bit base each layer is also held against that, so that damaged codes show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.checks import number_of
from quantdock.diagnosis.naming import name_layers, percent
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.errors import QuantDockError, few
from quantdock.registry.settings import KERNEL

if TYPE_CHECKING:
    from quantdock.diagnosis.model_numbers import LayerNumbers, ModelNumbers

_EXPLAINED_TOO_MUCH = 0.3  # a format whose rounding alone changes a layer so much does not suit it


def examine(case: Case) -> Result:
    """Return how far each layer is from its scheme, and from its 16-bit weight."""
    if reason := _why_not(case):
        return Result.skip(reason)
    base = _base_folder(case)
    from quantdock.diagnosis.base_layers import BaseLayers
    from quantdock.diagnosis.model_numbers import measure

    originals = BaseLayers(base) if base is not None else None
    try:
        model = _load(case)
    except QuantDockError as error:
        return _not_loaded(case, error)
    options = case.options
    wanted = {layer.prefix for layer in case.wanted} if options.layers else None
    checkpoint = case.checkpoint
    numbers = measure(
        model, checkpoint.folder, checkpoint.tensors, originals, wanted, options.trust_remote_code
    )
    return Result(
        summary=_summary(numbers),
        findings=(*_findings(numbers, case), *_unread(model.quantdock_plan.unused)),
        details=_details(numbers),
    )


def _why_not(case: Case) -> str:
    if case.options.quick:
        return "the model was not run (quick)"
    if case.choice.platform.described:
        return f"{case.choice.platform} is described: it is not this machine"
    return ""


def _base_folder(case: Case) -> str | Path | None:
    """Return the 16-bit checkpoint to compare with: the one named, or the one quantized at load."""
    if case.options.base is not None:
        return case.options.base
    return case.checkpoint.folder if case.choice.is_online and case.choice.name != "none" else None


def _load(case: Case) -> Any:
    from quantdock.integrations.transformers import load

    options = case.options
    return load(
        case.checkpoint.folder,
        options.quantization,
        dtype=options.dtype,
        kv_cache=options.kv_cache,
        platform=options.platform,
        exact=options.policy.exact,
        prefer=options.policy.prefer,
        require=options.policy.require,
        ignore=options.ignore,
        choices=options.choices,
        trust_remote_code=options.trust_remote_code,
        lenient=True,  # so that what NaN does to the numbers shows
        track=case.track,
    )


def _not_loaded(case: Case, error: QuantDockError) -> Result:
    """Return a skip where an earlier check said why the model does not load, else the fault."""
    failed = [outcome for outcome in case.outcomes if outcome.status == "fail"]
    if failed:
        which = ", ".join(str(number_of(outcome.name)) for outcome in failed)
        return Result.skip(f"the model does not load (see check {which}): {error.what}")
    return Result(summary="the model does not load", findings=(Finding.of(error),))


def _summary(numbers: ModelNumbers) -> str:
    count = len(numbers.layers) + numbers.num_without_input
    of = f" of {count:,}" if numbers.num_without_input else ""
    parts = [f"{len(numbers.layers):,}{of} quantized layers on {numbers.num_tokens} tokens"]
    if numbers.layers:
        worst = max(numbers.layers, key=lambda layer: layer.error / layer.tolerance)
        parts.append(f"kernels off by {worst.error:.1e} at most ({worst.tolerance:.1e} promised)")
    errors = [x.base.result for x in numbers.layers if x.base and math.isfinite(x.base.result)]
    if errors:
        parts.append(f"{percent(min(errors))} to {percent(max(errors))} from 16 bits")
    if numbers.perplexity is not None and math.isfinite(numbers.perplexity):
        parts.append(f"perplexity {numbers.perplexity:,.1f} (uniform: {numbers.vocabulary:,})")
    return "; ".join(parts)


def _findings(numbers: ModelNumbers, case: Case) -> Iterator[Finding]:
    yield from _stopped(numbers)
    yield from _not_finite(numbers, case)
    yield from _kernels(numbers)
    yield from _originals(numbers, case)
    yield from _text(numbers)


def _unread(names: Sequence[str]) -> Iterator[Finding]:
    if names:
        which = (
            "1 tensor of the files is" if len(names) == 1 else f"{len(names):,} of the tensors are"
        )
        yield note(
            f"{which} read by no module of the model: {few(names)}.",
            "config.json may state fewer layers than the files have",
            names=names,
        )


def _stopped(numbers: ModelNumbers) -> Iterator[Finding]:
    run = numbers.run
    if run.error is not None:
        text = f"{type(run.error).__name__}: {' '.join(str(run.error).split())}"
        yield Finding(
            level="fail",
            what=f"{run.stopped_in or 'The model'} raised an error while it ran.",
            why=(text,),
            todo=f"If it is a kernel's fault, another one may run: set {KERNEL}.",
            names=(run.stopped_in,) if run.stopped_in else (),
        )


def _not_finite(numbers: ModelNumbers, case: Case) -> Iterator[Finding]:
    run = numbers.run
    if run.bad:
        source = f"its input has {run.bad_input}" if run.bad_input else "its input is finite"
        todo = f"Look at check 6 for {run.bad}"
        narrow = "; or run in bfloat16 or float32 (--dtype)" if case.dtype == "float16" else ""
        yield Finding(
            level="fail",
            what=f"{run.bad_kind} starts in {run.bad} ({run.bad_op}).",
            why=(source,),
            todo=f"{todo}{narrow}.",
            names=(run.bad,),
        )


def _kernels(numbers: ModelNumbers) -> Iterator[Finding]:
    bad = [layer for layer in numbers.layers if layer.is_bad]
    if bad:
        first, names = bad[0], [layer.layer for layer in bad]
        yield Finding(
            level="fail",
            what=f"{first.layer} is the first layer whose kernel {first.kernel} is wrong: off by "
            f"{first.error:.1e} where {first.tolerance:.1e} is promised.",
            why=(f"wrong are {len(bad):,} of {len(numbers.layers):,}: {name_layers(names)}",),
            todo=f"Set {KERNEL}=reference to go on, and tell the kernel's authors.",
            names=tuple(names),
        )


def _originals(numbers: ModelNumbers, case: Case) -> Iterator[Finding]:
    """Yield layers that differ from their 16-bit weight by more than the format explains."""
    compared = [layer for layer in numbers.layers if layer.base]
    bad = [layer for layer in compared if layer.base and layer.base.is_bad]
    if bad:
        usual = _differing(bad, numbers.moved, is_most=2 * len(bad) > len(compared))
        yield _shifted(compared, case) or usual
    rough = [x.layer for x in compared if x.base and x.base.explained > _EXPLAINED_TOO_MUCH]
    if rough:
        yield Finding(
            level="warn",
            what=f"{name_layers(rough)}: rounding to this format alone changes the result by more "
            f"than {_EXPLAINED_TOO_MUCH:.0%}.",
            todo="Leave these layers out, or choose a finer format.",
            names=tuple(rough),
        )
    if numbers.num_nameless:
        yield note(
            f"{numbers.num_nameless:,} matrices of experts were not held against 16 bits: the base "
            "does not store them one by one"
        )
    if numbers.unlike:
        yield Finding(
            level="warn",
            what=f"{name_layers(numbers.unlike)}: the base has no 16-bit weight of this size.",
            todo="Name the checkpoint that this one was made from.",
            names=tuple(numbers.unlike),
        )


def _shifted(compared: list[LayerNumbers], case: Case) -> Finding | None:
    from quantdock.diagnosis.zero_shift import find_shift

    steps = {x.layer: x.base.steps for x in compared if x.base and x.base.steps is not None}
    return find_shift(steps, case.setting.config, is_measured=True)


def _differing(bad: list[LayerNumbers], moved: list[str], *, is_most: bool) -> Finding:
    """Return the finding on ``bad`` layers; a fault only where the base seems to be the base."""
    first, names = bad[0], tuple(layer.layer for layer in bad)
    base = first.base
    assert base is not None, "only compared layers are bad"
    what = (
        f"{first.layer} is the first layer that is not its 16-bit weight: results differ by "
        f"{percent(base.result)}, weights of row {base.worst_row} by {percent(base.row)}."
    )
    explained = f"{percent(base.explained)} and {percent(base.explained_row)}"
    why = [f"rounding to the format explains {explained}"]
    if len(names) > 1:
        why.append(f"so it is with {name_layers(names)}")
    if moved:
        why.append(f"the base also differs in {name_layers(moved, 'tensor')}")
    elif is_most:
        why.append("most layers differ")
    else:
        todo = "Its codes or scales are damaged: download or quantize this layer again."
        return Finding(level="fail", what=what, why=tuple(why), todo=todo, names=names)
    todo = "Name the base it was made from; or the quantizer moved factors between layers."
    return Finding(level="warn", what=what, why=tuple(why), todo=todo, names=names)


def _text(numbers: ModelNumbers) -> Iterator[Finding]:
    """Yield whether the model finds plain English less likely than chance would."""
    found = numbers.perplexity
    if found is None:
        if numbers.run.logits is not None:
            yield note("there is no tokenizer, so arbitrary tokens ran and text was not judged")
    elif not math.isfinite(found) and not numbers.run.bad:
        yield Finding(
            level="fail",
            what="The model gives text no finite probability.",
            todo="Its logits are absurd although finite: see check 6 for the head and the norms.",
        )
    elif found > numbers.vocabulary:
        yield Finding(
            level="warn",
            what=f"Plain English has perplexity {found:,.0f}; guessing would have "
            f"{numbers.vocabulary:,}.",
            todo="Expected of random weights; else weights, tokenizer and config do not belong "
            "together.",
        )


def _details(numbers: ModelNumbers) -> dict[str, Any]:
    return {
        "num_tokens": numbers.num_tokens,
        "perplexity": numbers.perplexity,
        "vocabulary": numbers.vocabulary,
        "not_finite_from": numbers.run.bad,
        "layers": [
            {
                "layer": layer.layer,
                "kernel": layer.kernel,
                "error": layer.error,
                "tolerance": layer.tolerance,
                "base_error": layer.base.result if layer.base else None,
                "explained": layer.base.explained if layer.base else None,
                "worst_row": layer.base.worst_row if layer.base else None,
            }
            for layer in numbers.layers
        ],
        "layers_without_base": list(numbers.unlike),
    }
