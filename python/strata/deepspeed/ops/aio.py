"""deepspeed.ops.aio."""

from .._install import missing
from .op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]

__getattr__ = missing(__name__)
