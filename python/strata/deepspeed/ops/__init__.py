"""deepspeed.ops: DeepSpeed's optimizers, which are strata.optim's under other names, and its files."""

from __future__ import annotations

from .._install import missing
from . import adagrad, adam, aio, lion, op_builder

__all__ = ["adagrad", "adam", "aio", "lion", "op_builder"]

__compatible_ops__ = {name: True for name in ("async_io", "cpu_adagrad", "cpu_adam", "cpu_lion", "fused_adam", "fused_lion")}
"""Of those that there are, which work here."""

__getattr__ = missing(__name__)
