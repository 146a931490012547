"""deepspeed.ops.op_builder: what reads and writes files (DeepNVMe).  Nothing is built: it is strata.io's."""

from __future__ import annotations

from types import SimpleNamespace

from ...io import AsyncIO
from .._install import missing

__getattr__ = missing(__name__)


class AsyncIOBuilder:
    """load() has aio_handle, which is strata.io.AsyncIO."""

    NAME = "async_io"

    def is_compatible(self, verbose: bool = False) -> bool:
        return True

    def load(self, verbose: bool = False) -> SimpleNamespace:
        return SimpleNamespace(aio_handle=AsyncIO)
