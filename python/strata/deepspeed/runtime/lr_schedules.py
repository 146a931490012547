"""deepspeed.runtime.lr_schedules: DeepSpeed's schedulers.  The formulas are the library's (strata_config_get_rates)."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from ..._calls import Handle
from ..._report import abi
from .._install import missing
from .._settings import resolved

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]

__getattr__ = missing(__name__)


class _Schedule:
    """Sets the rates of an optimizer's groups: when it is made those of the first step, and with each step() the next ones.

    Arguments are those of the configuration's scheduler.params, which docs/config.md describes.
    """

    arguments: ClassVar[tuple[str, ...]]  # in DeepSpeed's order

    def __init__(self, optimizer: Any, *values: Any, last_batch_iteration: int = -1, **params: Any) -> None:
        if len(values) > len(self.arguments):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.arguments)} and last_batch_iteration")
        self.optimizer = optimizer
        self.last_batch_iteration = last_batch_iteration
        self._params = {**dict(zip(self.arguments, values)), **params}
        self._configs: dict[tuple[Any, ...], Handle] = {}
        self._bases = [(float(group["lr"]), group.get("betas")) for group in optimizer.param_groups]
        self._set()

    def _set(self) -> None:
        """DeepSpeed's iteration k is the library's step k + 2: its schedulers are made before the first step."""
        rates = abi().make("strata_config_rates")
        for group, base in zip(self.optimizer.param_groups, self._bases):
            config = self._config(*base)
            abi().strata_config_get_rates(config.pointer, self.last_batch_iteration + 2, ctypes.byref(rates))
            group["lr"] = rates.lr
            if base[1] is not None:
                group["betas"] = (rates.beta1, rates.beta2)

    def _config(self, lr: float, betas: Any) -> Handle:
        """Of a group with these values: some schedules are fractions of its own rate."""
        key = (lr, betas and tuple(betas))
        if key not in self._configs:
            params = {"lr": lr, **({} if betas is None else {"betas": list(betas)})}
            rule = "SGD" if betas is None else "AdamW"
            scheduler = {"type": type(self).__name__, "params": self._params}
            self._configs[key] = resolved({"optimizer": {"type": rule, "params": params}, "scheduler": scheduler})
        return self._configs[key]

    def step(self, last_batch_iteration: int | None = None) -> None:
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self._set()

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    get_last_lr = get_lr

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        self._set()


_WARMUP = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupLR(_Schedule):
    arguments = _WARMUP


class WarmupDecayLR(_Schedule):
    arguments = ("total_num_steps", *_WARMUP)


class WarmupCosineLR(_Schedule):
    arguments = ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type")


class OneCycle(_Schedule):
    arguments = (
        *("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size"),
        *("cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size"),
        *("cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"),
    )


class LRRangeTest(_Schedule):
    arguments = ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase")
