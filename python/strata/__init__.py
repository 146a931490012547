"""strata trains language models whose state does not fit the GPU: on memory and drives (docs/python.md).

Plain functions do what the program `strata` does; strata.optim keeps a PyTorch optimizer's state elsewhere; strata.io reads and
writes files at the speed of the drive.  Nothing is loaded, started or opened before it is used.
"""

from __future__ import annotations

from typing import Any

from . import io
from ._handles import Config, Machine
from ._page import report
from ._report import Report, Table
from .benches import bench
from .errors import Error
from .files import digest, export
from .generation import Generator, generate
from .pictures import plot
from .planning import advise, check, info, plan
from .tokenizer import Tokenizer
from .training import train

__all__ = [
    "Config",
    "Error",
    "Generator",
    "Machine",
    "Report",
    "Table",
    "Tokenizer",
    "advise",
    "bench",
    "check",
    "digest",
    "export",
    "generate",
    "info",
    "io",
    "plan",
    "plot",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._library import Library

        return Library.get().abi.strata_version().decode()
    raise AttributeError(f"module 'strata' has no attribute {name!r}")
