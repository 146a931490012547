"""deepspeed.utils.zero_to_fp32: the fp32 weights of a checkpoint, without its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...files import new_file
from ...torch.exported import bytes_of, saved_at
from .._install import missing

__getattr__ = missing(__name__)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str, tag: str | None = None, exclude_frozen_parameters: bool = False, lazy_mode: bool = False
) -> dict[str, torch.Tensor]:
    """Masters and buffers by the module's names.  lazy_mode: all of it is read at once in any case."""
    return saved_at(checkpoint_dir, tag).state_dict(exclude_frozen_parameters)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str,
    output_dir: str,
    max_shard_size: Any = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """pytorch_model.bin, which max_shard_size does not cut, or model.safetensors, which it does."""
    saved, most = saved_at(checkpoint_dir, tag), bytes_of(max_shard_size)
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    if safe_serialization:
        if exclude_frozen_parameters:
            saved.names = {name: own for name, own in saved.names.items() if own not in saved.frozen}
        saved.write(Path(output_dir), torch.float32, most)
        return
    with new_file(Path(output_dir, "pytorch_model.bin"), True, "wb") as file:
        torch.save(saved.state_dict(exclude_frozen_parameters), file)


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str, tag: str | None = None
) -> torch.nn.Module:
    """The model in main memory, with the checkpoint's weights: another engine may take it."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model
