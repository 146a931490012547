"""Which parts of a module are its ordered layers, and what a batch shows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .mapped import release, unchanged
from .pages import LARGE

_BATCHED = torch.nn.modules.batchnorm._BatchNorm


@dataclass
class Ordered:
    """A layer that is entered once forward and once backward in each micro-batch."""

    name: str
    module: torch.nn.Module
    boundary_bytes: int = 0  # of its input, which forward keeps for backward there; 0: PyTorch keeps it


def find(module: torch.nn.Module, named: str | Sequence[str] | None = None) -> list[Ordered]:
    """The layers of these names, or of lists of these names.  None: of the list with most parameters, and of others like it."""
    made = list(_named(module, [named] if isinstance(named, str) else named)) if named is not None else _largest(module)
    made = [o for o in made if next(o.module.parameters(), None) is not None]
    if not made:
        raise ValueError(f"{type(module).__name__} has no list of layers: name them by layers=")
    seen: dict[torch.nn.Module, str] = {}
    for o in made:
        for name, inner in o.module.named_modules(prefix=o.name):
            if inner in seen:
                raise ValueError(f"{name} and {seen[inner]} are one module: layers that run twice stay resident")
            seen[inner] = name
            if isinstance(inner, _BATCHED) and inner.track_running_stats:
                raise ValueError(f"{name} counts what runs through it, and forward runs twice: leave {o.name} out of layers=")
    return made


def blocks_of(module: torch.nn.Module) -> list[Ordered]:
    """The layers that would page, of those that are cut no further; none where nothing can."""
    try:
        found = find(module)
    except ValueError:
        return []
    return [o for o in found if sum(p.numel() for p in o.module.parameters()) <= LARGE]


def _named(module: torch.nn.Module, names: Sequence[str]) -> Iterator[Ordered]:
    for name in names:
        try:
            inner = module.get_submodule(name)
        except AttributeError:
            raise ValueError(f"layers: {type(module).__name__} has no {name}") from None
        if isinstance(inner, (torch.nn.ModuleList, torch.nn.Sequential)):
            yield from (Ordered(f"{name}.{n}" if name else n, child) for n, child in inner.named_children())
        else:
            yield Ordered(name, inner)


def _largest(module: torch.nn.Module) -> list[Ordered]:
    """Not the longest: a tower of images may have more layers than the decoder behind it."""
    lists = list(_lists("", module))
    if not lists:
        return []

    def kinds(layers: torch.nn.ModuleList) -> set[type]:
        return {type(child) for child in layers}

    most = max(lists, key=lambda found: sum(p.numel() for p in found[1].parameters()))
    alike = [name for name, layers in lists if kinds(layers) == kinds(most[1])]
    return list(_named(module, alike))


def _lists(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.ModuleList]]:
    """The outermost lists of two modules and more."""
    if isinstance(module, torch.nn.ModuleList) and len(module) > 1 and next(module.parameters(), None) is not None:
        yield name, module
        return
    for n, child in module.named_children():
        yield from _lists(f"{name}.{n}" if name else n, child)


@dataclass
class Call:
    """A call of a layer."""

    layer: Ordered
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None  # of its first tensor; None: it was given none


class Trace:
    """What a batch did to a module's layers; str() tells it."""

    def __init__(self, module: torch.nn.Module, layers: list[Ordered], calls: list[Call]) -> None:
        self.module, self.layers, self.calls = module, layers, calls
        times = Counter(call.layer.name for call in calls)
        self.problems = [
            f"{o.name} runs {times[o.name]} times: once in each micro-batch is possible" for o in layers if times[o.name] != 1
        ]

    @property
    def order(self) -> list[Ordered]:
        """Layers as they ran."""
        return [call.layer for call in self.calls]

    def bytes(self, call: Call, weights: torch.dtype | None = None) -> int:
        """Of a call's input; `weights`: of the engine's, which inputs of the weights' dtype will have."""
        if call.dtype is None:
            return 0
        own = next(call.layer.module.parameters()).dtype
        dtype = weights if weights is not None and call.dtype == own else call.dtype
        return torch.Size(call.shape).numel() * dtype.itemsize

    def __str__(self) -> str:
        inside = {p for o in self.layers for p in o.module.parameters()}
        count = sum(p.numel() for p in self.module.parameters())
        ordered = sum(p.numel() for p in inside)
        lines = [f"{type(self.module).__name__}: {len(self.layers)} layers page, {ordered:,} of {count:,} parameters"]
        for call in self.calls:
            o = call.layer
            given = "no tensor"
            if call.dtype is not None:
                sizes = " x ".join(str(size) for size in call.shape)
                given = f"{sizes} {str(call.dtype).removeprefix('torch.')}, {self.bytes(call):,} bytes"
            lines.append(f"  {o.name}  {type(o.module).__name__}  input {given}")
        names: dict[torch.nn.Parameter, list[str]] = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(p, []).append(name)
        for p, known in names.items():
            if p not in inside or len(known) > 1:
                lines.append(f"  resident: {' = '.join(known)}  {' x '.join(str(size) for size in p.shape)}")
        return "\n".join(lines + [f"  problem: {problem}" for problem in self.problems])

    __repr__ = __str__


def trace(module: torch.nn.Module, batch: Any, layers: str | Sequence[str] | None = None) -> Trace:
    """Run a batch (a dict of arguments, a tuple or list of them, or one) without gradients, and see what the layers do."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"trace() takes a torch.nn.Module, not {type(module).__name__}")
    found = find(module, layers)
    unchanged(module.parameters())
    calls: list[Call] = []

    def seen(o: Ordered) -> Any:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            first = next((t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)), None)
            calls.append(Call(o) if first is None else Call(o, tuple(first.shape), first.dtype))

        return o.module.register_forward_pre_hook(hook, with_kwargs=True)

    hooks = [seen(o) for o in found]
    hooks += [o.module.register_forward_hook(lambda m, *_: release(m.parameters())) for o in found]
    training = {m: m.training for m in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if isinstance(batch, Mapping):
                module(**batch)
            else:
                module(*(batch if isinstance(batch, (tuple, list)) else (batch,)))
    finally:
        for hook in hooks:
            hook.remove()
        for m, was in training.items():
            m.training = was
    return Trace(module, found, calls)


def measured(
    module: torch.nn.Module, layers: str | Sequence[str] | None, example: Any, boundary_bytes: int, weights: torch.dtype
) -> list[Ordered]:
    """Layers in the order in which an example runs them, with room for their inputs; without one as they are listed."""
    if example is None:
        found = find(module, layers)
    else:
        told = trace(module, example, layers)
        if told.problems:
            raise ValueError("; ".join(told.problems))
        for call in told.calls:
            call.layer.boundary_bytes = told.bytes(call, weights)
        found = told.order
    if boundary_bytes < 0:
        raise ValueError(f"boundary_bytes is {boundary_bytes}: 0 and more are possible")
    for o in found:
        o.boundary_bytes = boundary_bytes or o.boundary_bytes
    return found
