"""Operands of one product, as the tuner makes them."""

from __future__ import annotations

from quantdock_cuda.tuning.operands import Operands as Operands
