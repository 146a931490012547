"""deepspeed.utils."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from .._install import missing
from .logging import log_dist, logger

__all__ = ["log_dist", "logger", "set_z3_leaf_modules"]

_absent = missing(__name__)


def __getattr__(name: str) -> Any:
    if name in _FRAGMENTS:  # which needs the engine, and that this
        return getattr(importlib.import_module(f"{__name__}.tensor_fragment"), name)
    return _absent(name)


_FRAGMENTS = (
    *("safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state"),
    *("safe_set_full_fp32_param", "safe_set_full_optimizer_state"),
)


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[Any]:
    """The modules of these classes; nothing is gathered module by module here, so nothing changes."""
    asked = list(leaf_module_classes)
    found = [module for module in model.modules() if type(module) in asked or type(module).__name__ in asked]
    if raise_if_not_found and not found:
        raise ValueError(f"the model has no module of {', '.join(str(kind) for kind in asked)}")
    return found
