"""deepspeed.ops.lion."""

from __future__ import annotations

from typing import Any

from ... import optim
from .._install import missing

__getattr__ = missing(__name__)


class DeepSpeedCPULion(optim.Lion):
    """strata.optim.Lion, with DeepSpeed's defaults."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay, moments="fp32" if fp32_optimizer_states else "bf16")


class FusedLion(DeepSpeedCPULion):
    """The same, under the name of DeepSpeed's optimizer for GPUs."""
