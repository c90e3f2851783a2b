"""Check 5: tensors have the shapes that scales, config.json and ``--tp`` ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.naming import by_text, name_layers
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.errors import CheckpointError
from quantdock.schemes.decision import CORRECT


def examine(case: Case) -> Result:
    """Return how the tensors fit each other, the model, and the ranks."""
    ways: Mapping[str, str] = {}
    findings = list(_grids(case))
    compared = "sizes of config.json not compared (quick)"
    if not case.options.quick:
        try:
            model = _model_sizes(case)
            ways = model.ways
            findings += _misfits(model)
            compared = "compared with config.json"
        except CheckpointError as error:
            compared = "sizes of config.json not compared"
            findings.append(note(error.what, *error.why))
    details: dict[str, Any] = {}
    if case.options.tp > 1:
        found, sizes = _sharding(case, ways)
        findings += found
        details = {"tp": case.options.tp, "tp_sizes": sizes}
        compared += f"; {case.options.tp} ranks"
    return Result(
        summary=f"{len(case.checkpoint.tensors):,} tensors, {compared}",
        findings=tuple(findings),
        details=details,
    )


def _grids(case: Case) -> Iterator[Finding]:
    """Yield tensors that do not fit the weight beside them."""
    decided = {layer.prefix: layer.decision for layer in case.layers}
    faults = case.faults_of("shape", "dtype")
    for text, names in by_text((fault.text, fault.layer) for fault in faults).items():
        first = decided[names[0]]
        yield Finding(
            level="fail",
            what=f"{name_layers(names)}: {text}.",
            why=(first.because,),
            todo=first.todo or CORRECT,
            names=tuple(names),
        )


def _model_sizes(case: Case) -> Any:
    from quantdock.diagnosis.model_sizes import compare_sizes

    try:
        return compare_sizes(case)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            "transformers cannot build the model that config.json describes.",
            why=[f"{type(error).__name__}: {' '.join(str(error).split())}"],
        ) from error


def _misfits(model: Any) -> Iterator[Finding]:
    """Yield tensors of another size than the model's, and tensors that are missing."""
    for text, names in by_text(model.misfits).items():
        yield Finding(
            level="fail",
            what=f"{name_layers(names, 'tensor')}: {text}.",
            why=("the model of config.json has the size that is expected",),
            todo="Use the config.json that belongs to these weights.",
            names=tuple(names),
        )
    if model.missing:
        yield Finding(
            level="fail",
            what=f"{name_layers(model.missing, 'tensor')}: in no file.",
            why=("the model of config.json has them",),
            todo="Download the missing files, or use the config.json of these weights.",
            names=model.missing,
        )


def _sharding(case: Case, ways: Mapping[str, str]) -> tuple[list[Finding], list[int]]:
    """Return the layers that ``tp`` ranks cannot divide, and the numbers of ranks that could."""
    from quantdock.diagnosis.divided_groups import kernels_of_parts
    from quantdock.diagnosis.sharding import Heads, Sharding

    tp, config = case.options.tp, case.setting.config
    sharding = Sharding(case.layers, config, Heads.read(case.config), ways)
    sizes = sharding.legal_sizes()
    findings = [
        note(f"{name_layers(names)}: {text}; ranks share such scales, other runtimes may refuse")
        for text, names in by_text(sharding.cut_tiles(tp)).items()
    ]
    findings += kernels_of_parts(case, sharding.divided_inputs(tp))
    refusals = list(sharding.refusals(tp))
    if refusals:
        refusal = Finding(
            level="fail",
            what=f"{tp} ranks cannot divide the model.",
            why=tuple(f"{name_layers(n)}: {text}" for text, n in by_text(refusals).items()),
            todo=f"Numbers of ranks that divide every layer: {', '.join(map(str, sizes))}.",
            names=tuple(dict.fromkeys(name for _, name in refusals)),
        )
        findings.insert(0, refusal)
    return findings, sizes
