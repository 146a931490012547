"""What code that knows DeepSpeed's stage 3 looks for."""

from __future__ import annotations

import enum
import itertools
import weakref
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .engine import DeepSpeedEngine


class ZeroParamStatus(enum.Enum):
    """Whether a parameter can be read: all can but those of layers that page."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


_ids = itertools.count()


def mark(module: torch.nn.Module, paged: Container[torch.nn.Parameter] = ()) -> None:
    """What is looked for on parameters where a configuration says stage 3."""
    for parameter in module.parameters():
        marks: Any = parameter
        if not hasattr(marks, "ds_id"):
            marks.ds_id = next(_ids)
        marks.ds_status = ZeroParamStatus.NOT_AVAILABLE if parameter in paged else ZeroParamStatus.AVAILABLE
        marks.ds_active_sub_modules = set()
        marks.ds_shape, marks.ds_numel = parameter.shape, parameter.numel()


class ParameterOffload:
    """parameter_offload of an optimizer at stage 3: TRL takes its hooks off for generation.  There are none."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = weakref.ref(engine)
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    @property
    def module(self) -> DeepSpeedEngine | None:
        return self._engine()

    def _register_deepspeed_module(self, module: torch.nn.Module) -> None:
        """Puts the hooks on."""
