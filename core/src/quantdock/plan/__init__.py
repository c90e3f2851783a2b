"""The plan: every decision for a model, with its reason. Nothing here imports torch."""

from quantdock.plan.plan import LayerPlan, Plan, Swap, Totals

__all__ = ["LayerPlan", "Plan", "Swap", "Totals"]
