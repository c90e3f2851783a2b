"""A plan as JSON and back. Fields are those of Plan and LayerPlan, with two differences.

``schema`` names the version: fields may be added to one version, never removed or renamed. Lists
of rejected kernels repeat from layer to layer, so they stand once, under ``rejections``, and a
layer's ``rejected`` is an index into them. ``totals`` is for readers; reading back computes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from quantdock.errors import ConfigError
from quantdock.kernel import Rejection
from quantdock.plan.plan import LayerPlan, Plan, Swap

SCHEMA = "quantdock.plan/1"
_PLAN_FIELDS = tuple(field.name for field in fields(Plan))
_LAYER_FIELDS = tuple(field.name for field in fields(LayerPlan))
_LAYERS = ("layers", "rules", "attention")


def plan_to_json(plan: Plan) -> str:
    """Return ``plan`` as JSON."""
    rejections: dict[tuple[Rejection, ...], int] = {}
    content: dict[str, Any] = {"schema": SCHEMA}
    for name in _PLAN_FIELDS:
        value = getattr(plan, name)
        if name in _LAYERS:
            value = [_layer(layer, rejections) for layer in value]
        content[name] = list(value) if isinstance(value, tuple) else value
    content["totals"] = asdict(plan.totals)
    content["rejections"] = [
        [{"kernel": r.kernel, "reasons": list(r.reasons)} for r in row] for row in rejections
    ]
    return json.dumps(content, indent=1)


def _layer(layer: LayerPlan, rejections: dict[tuple[Rejection, ...], int]) -> dict[str, Any]:
    content = {name: getattr(layer, name) for name in _LAYER_FIELDS}
    content["substitution"] = asdict(layer.substitution) if layer.substitution else None
    content["rejected"] = rejections.setdefault(layer.rejected, len(rejections))
    content["warnings"] = list(layer.warnings)
    return content


def plan_from_json(text: str) -> Plan:
    """Return the plan that ``plan_to_json`` wrote.

    Raises:
        ConfigError: it is of another schema, or no plan at all.
    """
    try:
        content = json.loads(text)
        schema = content.get("schema")
        if schema == SCHEMA:
            return _read_plan(content)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise ConfigError(
            f"This is no plan in JSON: {text!r:.60}",
            why=[f"{type(error).__name__}: {error}"],
            todo="Give what Plan.to_json or `quantdock explain --json` wrote.",
        ) from error
    raise ConfigError(
        f"The plan is written in schema {schema!r}.",
        why=[f"this release reads {SCHEMA!r}"],
        todo="Make the plan again with this release.",
        field="schema",
    )


def _read_plan(content: Mapping[str, Any]) -> Plan:
    rejections = [
        tuple(Rejection(kernel=r["kernel"], reasons=tuple(r["reasons"])) for r in row)
        for row in content["rejections"]
    ]
    values: dict[str, Any] = {}
    for name in _PLAN_FIELDS:
        if name not in content:  # written before there was such a field
            continue
        value = content[name]
        if name in _LAYERS:
            value = [_read_layer(layer, rejections) for layer in value]
        values[name] = tuple(value) if isinstance(value, list) else value
    return Plan(**values)


def _read_layer(content: Mapping[str, Any], rejections: list[tuple[Rejection, ...]]) -> LayerPlan:
    values = {name: content[name] for name in _LAYER_FIELDS if name in content}
    swap = content["substitution"]
    values["substitution"] = Swap(**swap) if swap else None
    values["rejected"] = rejections[content["rejected"]]
    values["warnings"] = tuple(content["warnings"])
    return LayerPlan(**values)
