"""deepspeed.ops.adam."""

from __future__ import annotations

from typing import Any

from ... import optim
from .._install import absent, missing

__getattr__ = missing(__name__)


class DeepSpeedCPUAdam(optim.AdamW):
    """strata.optim.AdamW; with adamw_mode=False Adam, whose decay is added to the gradient."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise absent("amsgrad", NotImplementedError)
        if not bias_correction:
            raise absent("Adam without bias_correction, but by the configuration's optimizer.params", NotImplementedError)
        self.rule = "ADAMW" if adamw_mode else "ADAM"  # type: ignore[misc]
        moments = "fp32" if fp32_optimizer_states else "bf16"
        super().__init__(model_params, lr, betas, eps, weight_decay, moments=moments)


class FusedAdam(DeepSpeedCPUAdam):
    """The same, with the arguments of DeepSpeed's optimizer for GPUs."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)
