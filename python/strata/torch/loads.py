"""What Engine.load() takes from a checkpoint: all of it, or the weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Error
from .exported import saved_at
from .pages import differs
from .ranks import agree
from .saves import set_random_states

if TYPE_CHECKING:
    from .engine import Engine


def load_all(engine: Engine, directory: Path, tag: str | None, random_states: bool, trusted: bool) -> Any:
    """Between steps.  What does not fit is refused before anything is changed.  Returns the client_state."""
    layers = engine._layers
    error: Exception | None = None
    try:
        place, shared, own = engine._saves.read(layers, directory, tag, trusted)
        _check_fits(engine, place, own["optimizer"], shared["buffers"])
    except Exception as raised:
        error = raised
    agree(layers.comm, error, "a checkpoint that is loaded")
    engine._saves.resume(layers, place)
    _forget_files(engine)
    engine._close_step()
    engine.optimizer.load_state_dict(own["optimizer"])
    with torch.no_grad():
        for name, buffer in engine.module.named_buffers():
            buffer.copy_(shared["buffers"][name])
    if random_states:
        set_random_states(own["random"])
    return own["client_state"]


def _forget_files(engine: Engine) -> None:
    """Files that weights were read from are no longer theirs where these have changed."""
    for kept in engine._kept:
        if kept.file is not None and differs(engine._layers, kept.index, kept.file):
            kept.file = None


def _check_fits(engine: Engine, place: Path, groups: dict[str, Any], saved: Mapping[str, torch.Tensor]) -> None:
    try:
        engine.optimizer.check_state(groups)
    except ValueError as error:
        raise Error("E_INPUT", f"{place} is of another model, or another optimizer: {error}") from None
    for name, buffer in engine.module.named_buffers():
        if name not in saved:
            raise ValueError(f"{place} has no buffer {name}, which the module has")
        if saved[name].shape != buffer.shape:
            raise ValueError(f"{name} is {tuple(saved[name].shape)} in {place}, and {tuple(buffer.shape)} in the module")


def load_weights(engine: Engine, directory: Path, tag: str | None, strict: bool, trusted: bool) -> Any:
    """Weights and buffers by name; moments, steps and groups stay this run's.  Returns the client_state.

    Between steps.  strict: the checkpoint and the module have the same names; others are left as they are without it.
    """
    layers = engine._layers
    index = {tensor.name: i for i, tensor in enumerate(layers.tensors)}
    buffers = dict(engine.module.named_buffers())
    error: Exception | None = None
    try:
        place, shared, own = engine._saves.read(layers, directory, tag, trusted)
        saved = saved_at(place)
        shapes = {**saved.shapes, **{name: one.shape for name, one in shared["buffers"].items()}}
        ours = {name: layers.tensors[i].shape for name, i in index.items()}
        ours.update((name, buffer.shape) for name, buffer in buffers.items())
        _check(place, shapes, ours, strict)
    except Exception as raised:
        error = raised
    agree(layers.comm, error, "a checkpoint whose weights are loaded")

    def take(name: str, first: int, part: torch.Tensor, _: torch.dtype) -> None:
        if name in index:
            layers.write(index[name], "WEIGHT", part.data_ptr(), first=first, elems=part.numel())

    engine._saves.changed()
    try:
        saved.read(take)
        _forget_files(engine)
        with torch.no_grad():
            for name, buffer in buffers.items():
                if name in shared["buffers"]:
                    buffer.copy_(shared["buffers"][name])
    finally:
        engine._close_step()
    return own["client_state"]


def _check(place: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], strict: bool) -> None:
    missing, unexpected = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if strict and (missing or unexpected):
        told = f"{place} has no {missing[0]}" if missing else f"the module has no {unexpected[0]}, which {place} has"
        raise ValueError(f"{told}, of {len(missing)} and {len(unexpected)} such names: strict=False leaves them as they are")
    for name, shape in ours.items():
        if name in theirs and tuple(theirs[name]) != tuple(shape):
            raise ValueError(f"{name} is {tuple(theirs[name])} in {place}, and {tuple(shape)} in the module")
