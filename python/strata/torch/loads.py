"""What Engine.load() takes from a checkpoint: all of it, or the weights alone.

Everything is read, checked and made before the first value is replaced, on all ranks: what is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Error
from ..files import place_of
from .beside import check_random_states, read_beside, set_random_states, unpacked
from .exported import buffers_of, saved_of
from .pages import DTYPES, differs
from .ranks import agree

if TYPE_CHECKING:
    from .engine import Engine


def load_all(engine: Engine, directory: Path, tag: str | None, random_states: bool, trusted: bool) -> Any:
    """Between steps.  Returns the client_state."""
    layers = engine._layers
    error: Exception | None = None
    try:
        place = place_of(directory, tag)
        shared, own = _read(engine, place)
        groups, client_state = unpacked(own, "optimizer", trusted), unpacked(own, "client_state", trusted)
        try:
            engine.optimizer.check_state(groups)
        except (ValueError, TypeError, LookupError, AttributeError) as refused:
            raise Error("E_INPUT", f"{place} is of another model, or another optimizer: {refused}", exit_code=2) from refused
        engine.check_client_state(client_state, place)
        buffers = _made(engine, place, shared["buffers"], strict=True)
        if random_states:
            check_random_states(own)
    except Exception as raised:
        error = raised
    agree(layers.comm, error, "a checkpoint that is loaded")
    engine._saves.resume(layers, place)
    _forget_files(engine)
    engine._close_step()
    engine.optimizer.load_state_dict(groups)
    _take(engine, buffers)
    if random_states:
        set_random_states(own["random"])
    return client_state


def _read(engine: Engine, place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What rank 0 has saved, and this one."""
    rank = 0 if engine._layers.comm is None else engine._layers.comm.rank
    shared = read_beside(place, 0)
    return shared, read_beside(place, rank) if rank > 0 else shared


def _forget_files(engine: Engine) -> None:
    """Files that weights were read from are no longer theirs where these have changed."""
    for kept in engine._kept:
        if kept.file is not None and differs(engine._layers, kept.index, kept.file):
            kept.file = None


def _made(engine: Engine, place: Path, saved: Mapping[str, torch.Tensor], strict: bool) -> dict[str, torch.Tensor]:
    """Values of the module's buffers, as these hold them."""
    made = {}
    for name, buffer in buffers_of(engine.module).items():
        if name not in saved:
            if strict:
                raise ValueError(f"{place} has no buffer {name}, which the module has")
            continue
        if saved[name].shape != buffer.shape:
            raise ValueError(f"{name} is {tuple(saved[name].shape)} in {place}, and {tuple(buffer.shape)} in the module")
        made[name] = torch.empty_like(buffer).copy_(saved[name])
    return made


def _take(engine: Engine, buffers: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in buffers_of(engine.module).items():
            if name in buffers:
                buffer.copy_(buffers[name])


def load_weights(engine: Engine, directory: Path, tag: str | None, strict: bool, trusted: bool) -> Any:
    """Weights and buffers by name; moments, steps and groups stay this run's.  Returns the client_state.

    Between steps.  strict: the checkpoint and the module have the same names; others are left as they are without it.
    """
    layers = engine._layers
    index = {tensor.name: i for i, tensor in enumerate(layers.tensors)}
    error: Exception | None = None
    try:
        place = place_of(directory, tag)
        shared, own = _read(engine, place)
        client_state = unpacked(own, "client_state", trusted)
        engine.check_client_state(client_state, place)
        saved = saved_of(place, shared)
        shapes = {**saved.shapes, **{name: one.shape for name, one in shared["buffers"].items()}}
        ours = {name: layers.tensors[i].shape for name, i in index.items()}
        ours.update((name, buffer.shape) for name, buffer in buffers_of(engine.module).items())
        _check(place, shapes, ours, strict)
        buffers = _made(engine, place, shared["buffers"], strict=False)
        saved.read(lambda *_: None)  # checksums, before a value is set
    except Exception as raised:
        error = raised
    agree(layers.comm, error, "a checkpoint whose weights are loaded")

    frozen = {name for name, i in index.items() if layers.tensors[i].group is None}

    def write(name: str, first: int, part: torch.Tensor) -> None:
        layers.write(index[name], "WEIGHT", part.data_ptr(), first=first, elems=part.numel())

    def take_frozen(name: str, first: int, part: torch.Tensor, _: torch.dtype) -> None:
        if name in frozen:
            here = torch.empty_like(part)
            layers.read(index[name], "WEIGHT", here.data_ptr(), first=first, elems=part.numel())
            if not torch.equal(here, part.to(DTYPES[layers.tensors[index[name]].dtype]).float()):
                write(name, first, part)

    def take(name: str, first: int, part: torch.Tensor, _: torch.dtype) -> None:
        if name in index and name not in frozen:
            write(name, first, part)

    engine._saves.changed()
    try:
        if frozen:  # first: a run that has saved refuses others than its checkpoints share
            saved.read(take_frozen)
        saved.read(take)
        _forget_files(engine)
        _take(engine, buffers)
    finally:
        engine._close_step()
    return client_state


def _check(place: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], strict: bool) -> None:
    missing, unexpected = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if strict and (missing or unexpected):
        told = f"{place} has no {missing[0]}" if missing else f"the module has no {unexpected[0]}, which {place} has"
        raise ValueError(f"{told}, of {len(missing)} and {len(unexpected)} such names: strict=False leaves them as they are")
    for name, shape in ours.items():
        if name in theirs and tuple(theirs[name]) != tuple(shape):
            raise ValueError(f"{name} is {tuple(theirs[name])} in {place}, and {tuple(shape)} in the module")
