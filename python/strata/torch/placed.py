"""An engine's parameters: how they come into its pages, whether they lie there still, and how they leave."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from .._handles import Machine
from .._library import Library
from ..errors import Error
from ..layers import Layers
from .mapped import copied, is_kept, release, waits
from .paged import Pager
from .pages import DTYPES, Kept, absent, cast_norms, over

if TYPE_CHECKING:
    from .engine import Engine

_MOVED = ".to() another device or dtype, .half(), p.data = x, load_state_dict(assign=True) and resizing come before the engine"
_CHANGED = "change the module before its engine is made"


def place(engine: Engine, module: torch.nn.Module) -> None:
    """First values go to the pages, and parameters lie there from now on.

    Buffers keep their dtype (rotary frequencies need fp32), but for those of batch norms, which compute in the model's.
    """
    layers, kept = engine._layers, engine._kept

    def fill(index: int, first: int, elems: int, address: int) -> None:
        part = kept[index].parameter.detach().reshape(-1)[first : first + elems]
        over(address, part.shape, torch.float32, None).copy_(copied(part))
        release([part])

    layers.load(fill)
    layers.begin(evaluates=True)
    views = {i: layers.use(layers.FORWARD, i) for i, layer in enumerate(layers.given) if layer.resident}
    layers.drop()
    for k, t in zip(kept, layers.tensors):
        k.parameter.grad = None
        waits(k.parameter, ends=True)
        if t.layer in views:
            k.address = views[t.layer].weights + t.weight_at
            k.parameter.data = over(k.address, k.parameter.shape, DTYPES[t.dtype], layers, engine._device)
        else:
            k.away = absent(k.name, k.parameter.shape, DTYPES[t.dtype], engine._device)
            if k.group is None and k.parameter.dtype == k.away.dtype and is_kept(k.parameter):
                k.file = k.parameter.data
            k.parameter.data = k.away
        k.version = k.parameter._version
    cast_norms(module, DTYPES[layers.tensors[0].dtype])  # the configuration's, as all of them
    for buffer in module.buffers():
        buffer.data = buffer.data.to(engine._device)


def check(engine: Engine) -> None:
    """What has been changed since the engine was made is refused by name."""
    engine.optimizer.check()
    found = {plain(name): p for name, p in engine.module.named_parameters()}
    for k in engine._kept:
        p = found.pop(plain(k.name), None)
        if p is not k.parameter:
            raise RuntimeError(f"{k.name} is {'gone' if p is None else 'another parameter'}: {_CHANGED}")
        if not k.is_there:
            raise RuntimeError(f"{k.name} lies elsewhere than in the engine's pages: {_MOVED}")
        if p.requires_grad and not k.thawed:
            raise RuntimeError(f"{k.name} was frozen when the engine was made, and needs a gradient now: {_CHANGED}")
        if p.grad is not None and k.group is not None and not engine._backing:
            raise RuntimeError(
                f"{k.name} has a gradient of another backward, as of loss.backward(): zero_grad() clears it, and "
                "engine.backward(loss) is what the engine counts"
            )
    for name, p in found.items():
        if p.is_floating_point() and p.numel() > 0:
            raise RuntimeError(f"{name} was added after the engine was made: {_CHANGED}")


def part(parameters: list[weakref.ref[torch.nn.Parameter]], hooks: list[Any], layers: Layers, process: int) -> None:
    """Parameters that outlive the engine take their values with them; other tensors over its pages keep those."""
    if process != os.getpid() or layers.closed:
        return
    for hook in hooks:
        hook.remove()
    settle(layers)
    for known in parameters:
        parameter = known()
        if parameter is not None:
            parameter.data = parameter.data.clone()


def settle(layers: Layers) -> bool:
    """Nothing is pending; False where others may not be here, or nothing can be called."""
    alone = layers.comm is None and not Library.get().here.in_callback
    for end in (layers.drop, layers.flush) if alone else ():
        with suppress(Error, RuntimeError):  # no step is under way, it has failed, or the interpreter exits
            end()
    return alone


def leave(pager: Pager, layers: Layers, process: int) -> None:
    """An engine that pages is gone before its module."""
    if process == os.getpid() and not layers.closed and settle(layers):
        pager.part(layers)


def device_of(machine: Machine | None, kept: Iterable[Kept]) -> torch.device:
    """On which the engine's weights lie, and PyTorch computes."""
    kind, _, number = ("cpu" if machine is None else machine.device).partition(":")
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, int(number or 0))
    for k in kept:
        if k.parameter.device not in (torch.device("cpu"), device):
            raise ValueError(
                f"{k.name} is on {k.parameter.device}, and the engine computes on {device}: "
                'machine=strata.Machine(device="cuda") names another device'
            )
    return device


def dtype_of(settings: Mapping[str, Any]) -> torch.dtype:
    """Of weights."""
    known = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return next((dtype for key, dtype in known.items() if settings.get(key, {}).get("enabled") is True), torch.float32)


def plain(name: str) -> str:
    """Without what torch.compile() puts into names."""
    return name.replace("_orig_mod.", "")
