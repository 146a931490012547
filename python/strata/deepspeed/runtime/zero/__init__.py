"""deepspeed.zero: weights are whole on every rank here, but for those of layers that page, by offload_param."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch

from ....torch.mapped import Room, made_in, move, release, share
from ... import comm
from ..._install import missing
from ..._settings import section, taken
from ..engine import engines_of

__getattr__ = missing(__name__)


class Init(AbstractContextManager["Init"]):
    """A model made within is never whole in memory: its weights wait in files for initialize(), which takes them from there.

    They lie in the configuration's `nvme_path` where offload_param names one.  What load_state_dict() or from_pretrained() has
    from a file of safetensors stays in that, unless it is converted.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        **_: Any,
    ) -> None:
        given = config_dict_or_path if config_dict_or_path is not None else config
        section_given = {} if given is None else section(taken(given), "zero_optimization", "offload_param")
        paths = section_given.get("nvme_path") if section_given.get("device") == "nvme" else None
        paths = paths.split(",") if isinstance(paths, str) else paths
        self._room = Room(os.path.abspath(paths[0].strip()) if paths else None)
        self._enabled = enabled
        self._within = ExitStack()
        for inner in module.modules() if module is not None and enabled else ():
            for parameter in inner.parameters(recurse=False):
                move(inner, parameter, self._room)

    def __enter__(self) -> Init:
        if self._enabled:
            self._within.enter_context(made_in(self._room))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._within.close()


class GatheredParameters(AbstractContextManager["GatheredParameters"]):
    """Parameters to be read; with a modifier_rank, to be written by that rank, from which the others take them at the end.

    What is no tensor is passed over, such as the None of a layer without a bias.
    """

    def __init__(
        self,
        params: torch.nn.Parameter | Iterable[torch.nn.Parameter],
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else params
        self._params: list[Any] = [p for p in given if isinstance(p, torch.Tensor)] if enabled else []
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
            release(self._params)

    def _modified(self, error: BaseException | None) -> None:
        if self._modifier_rank is None or error is not None:
            return
        if comm.get_world_size() > 1:
            share(self._params, self._modifier_rank)
        for engine in engines_of(self._params):
            engine.follow()


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """For parameters that a module uses beside its own: nothing is to be told."""
