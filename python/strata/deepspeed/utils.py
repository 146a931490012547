"""deepspeed.utils."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from . import comm
from ._install import missing

logger = logging.getLogger("DeepSpeed")

__getattr__ = missing(__name__)


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Of these ranks; None, or -1 among them: of all."""
    if ranks is None or comm.get_rank() in ranks or -1 in ranks:
        logger.log(level, "[Rank %d] %s", comm.get_rank(), message)


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[Any]:
    """The modules of these classes; nothing is gathered module by module here, so nothing changes."""
    asked = list(leaf_module_classes)
    found = [module for module in model.modules() if type(module) in asked or type(module).__name__ in asked]
    if raise_if_not_found and not found:
        raise ValueError(f"the model has no module of {', '.join(str(kind) for kind in asked)}")
    return found
