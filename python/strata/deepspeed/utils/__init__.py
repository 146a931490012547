"""deepspeed.utils."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .._install import missing
from .logging import log_dist, logger

__all__ = ["log_dist", "logger", "set_z3_leaf_modules"]

__getattr__ = missing(__name__)


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[Any]:
    """The modules of these classes; nothing is gathered module by module here, so nothing changes."""
    asked = list(leaf_module_classes)
    found = [module for module in model.modules() if type(module) in asked or type(module).__name__ in asked]
    if raise_if_not_found and not found:
        raise ValueError(f"the model has no module of {', '.join(str(kind) for kind in asked)}")
    return found
