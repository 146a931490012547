"""A module's parameters as layers of strata's, and as tensors over the engine's pages."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..layers import Layer, Tensor, memory

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

_LARGE = 1 << 25  # elements: a module with more is cut into its children
_SMALL = 1 << 12  # a layer with fewer is joined to the one before it
_NAME = 95  # bytes of a name

_Named = list[tuple[str, torch.nn.Parameter]]


@dataclass
class Kept:
    """A parameter in the engine's pages."""

    name: str
    parameter: torch.nn.Parameter
    group: int | None  # None: frozen
    thawed: bool  # it needed a gradient when the engine was made
    address: int = 0
    version: int = 0  # when its master was last the same


def cut(module: torch.nn.Module, groups: Mapping[torch.nn.Parameter, int]) -> tuple[list[Layer], list[Kept]]:
    """Layers by the module alone: a block of a transformer is one, small ones are joined.  All are resident."""
    pieces: list[tuple[str, _Named]] = []
    for name, named in _pieces("", module, set()):
        if pieces and sum(p.numel() for _, p in named) < _SMALL:
            pieces[-1][1].extend(named)
        else:
            pieces.append((name, named))
    kept = [
        Kept(name, p, groups.get(p) if p.requires_grad else None, p.requires_grad) for _, named in pieces for name, p in named
    ]
    _check_apart(kept)
    layers = []
    at = 0
    for name, named in pieces:
        tensors = [Tensor(_short(k.name), tuple(k.parameter.shape), k.group) for k in kept[at : at + len(named)]]
        layers.append(Layer(_short(name), tensors, resident=True))
        at += len(named)
    return layers, kept


def _pieces(name: str, module: torch.nn.Module, taken: set[torch.nn.Parameter]) -> Iterator[tuple[str, _Named]]:
    named = [(n, p) for n, p in module.named_parameters(name) if p not in taken and _is_kept(n, p)]
    children = [(n, child) for n, child in module.named_children() if next(child.parameters(), None) is not None]
    lists = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    has_list = any(isinstance(m, lists) and next(m.parameters(), None) is not None for m in module.modules())
    if children and (has_list or sum(p.numel() for _, p in named) > _LARGE):
        prefix = f"{name}." if name else ""
        named = [(n, p) for n, p in named if n.removeprefix(prefix) in module._parameters]
    else:
        children = []
    taken.update(p for _, p in named)
    if named:
        yield name or "module", named
    for child, inner in children:
        yield from _pieces(f"{name}.{child}" if name else child, inner, taken)


def _is_kept(name: str, parameter: torch.nn.Parameter) -> bool:
    """Quantised and empty ones stay PyTorch's."""
    if isinstance(parameter, torch.nn.UninitializedParameter):
        raise ValueError(f"{name} is lazy: call the module once before")
    if parameter.is_meta or parameter.device.type != "cpu":
        raise ValueError(f"{name} is on {parameter.device}: strata.torch takes parameters in main memory")
    if parameter.is_floating_point():
        return parameter.numel() > 0
    if parameter.requires_grad:
        raise ValueError(f"{name} is {parameter.dtype}, which strata does not train")
    return False


def _check_apart(kept: list[Kept]) -> None:
    """What is tied is one parameter: two over one memory would part."""
    seen: dict[int, str] = {}
    for k in kept:
        other = seen.setdefault(k.parameter.untyped_storage().data_ptr(), k.name)
        if other != k.name and k.parameter.untyped_storage().nbytes() > 0:
            raise ValueError(f"{k.name} lies in the memory of {other}: tie them as one parameter, or clone one")


def _short(name: str) -> str:
    """A name as long as strata takes one."""
    data = name.encode()
    if len(data) <= _NAME:
        return name
    return f"{data[: _NAME - 9].decode(errors='ignore')}~{zlib.crc32(data):08x}"


def over(address: int, shape: torch.Size, dtype: torch.dtype, owner: object) -> torch.Tensor:
    """A tensor with a storage of its own over the engine's memory, which `owner` keeps."""
    elems = shape.numel()
    return torch.frombuffer(memory(address, elems * dtype.itemsize, owner), dtype=dtype, count=elems).view(shape)


def followed(master: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """The master of a weight that someone may have set; None where the weight is what the master rounds to."""
    same = master.to(weight.dtype) == weight
    if weight.dtype == torch.bfloat16:  # trained ones are rounded away from zero where two are as near
        away = (master.view(torch.int32) + 0x8000) >> 16
        same |= away.to(torch.int16) == weight.view(torch.int16)
    same |= master.isnan() & weight.isnan()
    return None if bool(same.all()) else torch.where(same, master, weight.float())
