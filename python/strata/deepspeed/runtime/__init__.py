"""deepspeed.runtime: what is imported from below it."""

from __future__ import annotations

from .._install import missing
from . import engine, lr_schedules, zero

__all__ = ["engine", "lr_schedules", "zero"]

__getattr__ = missing(__name__)
