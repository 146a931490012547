"""deepspeed.accelerator: the device that torch computes on, as scripts ask for it."""

from __future__ import annotations

from typing import Any

import torch

from . import comm
from ._install import absent, missing

__getattr__ = missing(__name__)


class _Accelerator:
    """What scripts ask: names of the device, and what torch.cuda has, which does nothing without one."""

    @property
    def _name(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None or self._name == "cpu" else f"{self._name}:{device_index}"

    def current_device_name(self) -> str:
        return self.device_name(comm.get_local_rank())

    def current_device(self) -> Any:
        return torch.cuda.current_device() if self._name == "cuda" else "cpu"

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def device_count(self) -> int:
        return torch.cuda.device_count() or 1

    def communication_backend_name(self) -> str:
        return "nccl" if self._name == "cuda" else "gloo"

    def is_available(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed = manual_seed_all

    def __getattr__(self, name: str) -> Any:
        if not hasattr(torch.cuda, name):
            raise absent(f"get_accelerator().{name}", AttributeError)
        if self._name == "cuda":
            return getattr(torch.cuda, name)
        return lambda *_, **__: 0  # bytes in use, or nothing to wait for


_ONLY = _Accelerator()


def get_accelerator() -> _Accelerator:
    return _ONLY
