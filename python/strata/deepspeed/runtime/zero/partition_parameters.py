"""deepspeed.runtime.zero.partition_parameters: what transformers and TRL take from it."""

from __future__ import annotations

from typing import Any

import torch

from ..._install import missing
from ...accelerator import get_accelerator
from .._whole import ZeroParamStatus
from . import GatheredParameters, Init

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "get_accelerator"]
__getattr__ = missing(__name__)

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(function: Any, *_: Any, **__: Any) -> Any:
    """Init changes how no tensor is made."""
    return function
