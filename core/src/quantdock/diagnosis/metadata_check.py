"""Check 2: where the quantization settings stand, whether sources differ, whether they make sense.

The files themselves count as metadata: an index or a header that is damaged is found here.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.report import Finding, Result, note


def examine(case: Case) -> Result:
    """Return what was found where; raises what is damaged, impossible, or missing altogether."""
    checkpoint, block = case.checkpoint, case.block
    if case.get("choice") is not None:
        _ = case.bound  # raises where a setting has an impossible value
    files = {entry.file for entry in checkpoint.tensors.values()}
    held = f"{len(checkpoint.tensors):,} tensors in {len(files)} file{'s' * (len(files) != 1)}"
    source = block.source if block else "no quantization settings, and none needed"
    return Result(
        summary=f"{source}; {held}",
        findings=tuple(_findings(case)),
        details={
            "source": block.source if block else None,
            "quant_method": block.method if block else None,
            "scope": block.scope if block else "",
            "num_tensors": len(checkpoint.tensors),
            "num_files": len(files),
        },
    )


def _findings(case: Case) -> Iterator[Finding]:
    block = case.block
    for warning in block.warnings if block else ():
        yield Finding(
            level="warn",
            what="Two sources of quantization settings differ.",
            why=(warning,),
            todo="Find out which one the weights were made with, and remove the other.",
        )
    if block and block.scope:
        yield note(f"the settings stand in {block.scope}, and cover the language model only")
    for warning in case.checkpoint.warnings:
        yield Finding(
            level="warn",
            what=warning,
            todo="Download index and files again, from one version.",
        )
