"""deepspeed.zero: weights are whole on every rank here, but for those of layers that page, by offload_param."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch

from ... import comm
from ..._install import missing
from ..engine import engines_of

__getattr__ = missing(__name__)


class Init(AbstractContextManager["Init"]):
    """A model made within is made as without: initialize() takes its weights."""

    def __init__(self, module: torch.nn.Module | None = None, *values: Any, **settings: Any) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class GatheredParameters(AbstractContextManager["GatheredParameters"]):
    """Parameters to be read; with a modifier_rank, to be written by that rank, from which the others take them at the end."""

    def __init__(
        self,
        params: torch.nn.Parameter | Iterable[torch.nn.Parameter],
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else params
        self._params = list(given) if enabled else []
        self._modifier_rank = modifier_rank
        self._gathered = ExitStack()

    def __enter__(self) -> GatheredParameters:
        for engine in engines_of(self._params):
            if engine._pager is None:
                engine.await_weights(frozenset(tensor.layer for tensor in engine._layers.tensors))
            self._gathered.enter_context(engine.gathered(p for p in self._params if p in engine._by_parameter))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._modified(error)
        finally:
            self._gathered.__exit__(kind, error, trace)

    def _modified(self, error: BaseException | None) -> None:
        if self._modifier_rank is None or error is not None:
            return
        if comm.get_world_size() > 1:
            for parameter in self._params:
                torch.distributed.broadcast(parameter.data, self._modifier_rank)
        for engine in engines_of(self._params):
            engine.follow()


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """For parameters that a module uses beside its own: nothing is to be told."""
