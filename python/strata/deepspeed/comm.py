"""deepspeed.comm: torch.distributed, which carries what a script exchanges; gradients go by strata's own ranks."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch.distributed

from ._install import absent


def __getattr__(name: str) -> Any:
    if name.startswith("__") or not hasattr(torch.distributed, name):
        raise absent(f"deepspeed.comm.{name}", AttributeError)
    return getattr(torch.distributed, name)


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """torch.distributed's group of what a launcher started, as RANK and WORLD_SIZE say; else of this process alone."""
    if torch.distributed.is_initialized():
        return
    backend = dist_backend if dist_backend in ("gloo", "mpi") or torch.cuda.is_available() else "gloo"
    more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    rank = rank if rank >= 0 else int(os.environ.get("RANK", 0))
    world_size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1, **more)
        return
    os.environ.setdefault("MASTER_PORT", str(distributed_port))
    torch.distributed.init_process_group(backend, init_method, rank=rank, world_size=world_size, **more)


def is_initialized() -> bool:
    return torch.distributed.is_initialized()


def get_rank(group: Any = None) -> int:
    return torch.distributed.get_rank(group) if is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    return torch.distributed.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def barrier(group: Any = None, **more: Any) -> None:
    if is_initialized():
        torch.distributed.barrier(group, **more)
