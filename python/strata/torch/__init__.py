"""strata.torch: any torch.nn.Module with its parameters in the engine's pages, their state on tiers (docs/python.md)."""

from __future__ import annotations

from .engine import Engine
from .found import Trace, trace
from .optimizer import Optimizer

__all__ = ["Engine", "Optimizer", "Trace", "trace"]
