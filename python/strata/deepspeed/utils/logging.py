"""deepspeed.utils.logging."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .. import comm
from .._install import missing

logger = logging.getLogger("DeepSpeed")

__getattr__ = missing(__name__)


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Of these ranks; None, or -1 among them: of all."""
    if ranks is None or comm.get_rank() in ranks or -1 in ranks:
        logger.log(level, "[Rank %d] %s", comm.get_rank(), message)
