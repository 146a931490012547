"""deepspeed.ops: DeepSpeed's optimizers, which are strata.optim's under other names."""

from __future__ import annotations

from .._install import missing
from . import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]

__getattr__ = missing(__name__)
