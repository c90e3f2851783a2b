"""Weights that all lie one scale beside what was meant: zero points written by another convention.

Weights of trained layers are as often negative as positive, so their mean is near 0: a mean near
one scale gives a shift away. A 16-bit base shows it weight by weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.diagnosis.naming import name_layers
from quantdock.diagnosis.report import Finding
from quantdock.numerics import CanonicalWeight, Segment

_SLACK = 0.25  # how far from 1 the mean may be, in scales


def mean_steps(weight: CanonicalWeight, base: Tensor | None = None) -> float | None:
    """Return how many scales the weights lie above 0, or above ``base`` [N, K], in the mean.

    None where there are no zero points, which alone could shift them.
    """
    if any(segment.zero is None for segment in weight.segments):
        return None
    values = weight.dequantize()
    steps = values if base is None else values - base
    scale = replace(weight, segments=tuple(map(_unit, weight.segments))).dequantize()
    return float(torch.where(scale == 0, 0.0, steps / scale).mean())


def _unit(segment: Segment) -> Segment:
    """Return a segment of the same scales whose every weight is one of them."""
    zero = torch.zeros_like(segment.scale, dtype=torch.int32)
    return replace(segment, codes=torch.ones_like(segment.codes), zero=zero)


def find_shift(
    steps: Mapping[str, float], config: QuantizationConfig, *, is_measured: bool
) -> Finding | None:
    """Return the finding that most layers are shifted, where a setting of ``config`` explains it.

    Args:
        steps: what ``mean_steps`` returned, by layer.
        is_measured: against the 16-bit base, and not against what is usual.
    """
    for shift in (-1, 1):
        names = [name for name, mean in steps.items() if abs(mean - shift) < _SLACK]
        because = config.explain_shift(shift)
        if 2 * len(names) <= len(steps) or not because:
            continue
        where = f"one scale {'below' if shift < 0 else 'above'}"
        mean = sum(steps[name] for name in names) / len(names)
        beside = "their 16-bit weights" if is_measured else "0, in the mean"
        return Finding(
            level="fail" if is_measured else "warn",
            what=f"{name_layers(names)}: weights lie {where} {beside}.",
            why=(because, f"the mean is {mean:+.2f} scales"),
            todo="Correct that field of the quantization block, so that zero points are read as "
            "they were written.",
            names=tuple(names),
        )
    return None
