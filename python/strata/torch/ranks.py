"""The ranks of torch.distributed as strata's."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed

from ..layers import Comm


def meet() -> Comm | None:
    """The ranks of torch.distributed, at a port of their own."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError("WORLD_SIZE says that there are more ranks: torch.distributed.init_process_group() comes first")
        return None
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if ranks == 1:
        return None
    place: list[Any] = [None]
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            place = [(os.environ.get("MASTER_ADDR") or socket.gethostname(), free.getsockname()[1])]
    torch.distributed.broadcast_object_list(place)
    return Comm(rank, ranks, *place[0])


def agree(comm: Comm | None, error: Exception | None, what: str) -> None:
    """Ranks go on together, or none does."""
    if comm is not None:
        failed = [rank for rank, told in enumerate(comm.gather(bytes([error is not None]), what)) if told != b"\0"]
        if failed and error is None:
            raise RuntimeError(f"{what}: rank {failed[0]} has failed")
    if error is not None:
        raise error
