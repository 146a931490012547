"""deepspeed.checkpoint.utils."""

from __future__ import annotations

from typing import Any

import torch


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """A copy of what holds tensors, each with a storage of its own size: a view would be saved with all that it is part of."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone().to(device)
    if isinstance(item, (list, tuple)):
        return type(item)(clone_tensors_for_torch_save(one, device) for one in item)
    if isinstance(item, dict):
        return type(item)((key, clone_tensors_for_torch_save(one, device)) for key, one in item.items())
    return item
