"""deepspeed.ops.adagrad."""

from __future__ import annotations

from typing import Any

from ... import optim
from .._install import absent, missing

__getattr__ = missing(__name__)


class DeepSpeedCPUAdagrad(optim.Adagrad):
    """strata.optim.Adagrad."""

    def __init__(
        self, model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0, amsgrad: bool = False
    ) -> None:
        if amsgrad:
            raise absent("amsgrad", NotImplementedError)
        super().__init__(model_params, lr, eps, weight_decay)
