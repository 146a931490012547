"""A module's parameters as layers of strata's, and as tensors over the engine's pages."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..layers import Layer, Layers, Tensor, memory
from .dlpack import tensor_at
from .mapped import release, untouched

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

LARGE = 1 << 25  # elements: a module with more is cut into its children
_SMALL = 1 << 12  # a layer with fewer is joined to the one before it
_PIECE = 1 << 20  # elements
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
    index: int = 0  # in the engine's tensors
    file: torch.Tensor | None = None  # of a layer that pages: a frozen weight in the file that it came from, or a small one
    away: torch.Tensor | None = None  # of a layer that pages: what lies in it outside of its layer, which cannot be read

    @property
    def is_there(self) -> bool:
        """Whether it lies where it did when the engine was made."""
        return self.parameter.is_set_to(self.away) if self.away is not None else self.parameter.data_ptr() == self.address


def cut(
    module: torch.nn.Module,
    groups: Mapping[torch.nn.Parameter, int],
    ordered: Mapping[torch.nn.Module, int],
    resident: bool = False,
) -> tuple[list[Layer], list[Kept], list[torch.nn.Module | None]]:
    """Layers by the module alone: a block of a transformer is one, small ones are joined.  Ordered ones have a boundary of so
    many bytes and are layers by themselves, also where all are `resident`: pages are the same then, and so are sums over them.
    Also returns each layer's module, None of those that are not ordered."""
    shared = _shared(module, ordered)
    pieces: list[tuple[str, _Named, torch.nn.Module | None]] = [("shared", shared, None)] if shared else []
    for name, named, inner in _pieces("", module, {p for _, p in shared}, ordered):
        if inner is None and pieces and pieces[-1][2] is None and sum(p.numel() for _, p in named) < _SMALL:
            pieces[-1][1].extend(named)
        else:
            pieces.append((name, named, inner))
    rank = {inner: i for i, inner in enumerate(ordered)}
    pieces.sort(key=lambda piece: -1 if piece[2] is None else rank[piece[2]])  # as pages lie where layers are ordered
    kept = [
        Kept(name, p, groups.get(p) if p.requires_grad else None, p.requires_grad)
        for _, named, _ in pieces
        for name, p in named
    ]
    _check_apart(kept)
    layers = []
    at = 0
    for i, k in enumerate(kept):
        k.index = i
    for name, named, inner in pieces:
        tensors = [Tensor(short(k.name), tuple(k.parameter.shape), k.group) for k in kept[at : at + len(named)]]
        boundary_bytes = 0 if inner is None or resident else ordered[inner]
        layers.append(Layer(short(name), tensors, inner is None or resident, boundary_bytes))
        at += len(named)
    return layers, kept, [inner for _, _, inner in pieces]


def _shared(module: torch.nn.Module, ordered: Iterable[torch.nn.Module]) -> _Named:
    """Parameters of an ordered layer that others have, too."""
    owner = {inner: layer for layer in ordered for inner in layer.modules()}
    first: dict[torch.nn.Parameter, tuple[str, torch.nn.Module | None]] = {}
    made: dict[torch.nn.Parameter, str] = {}
    for name, inner in module.named_modules():
        for short, p in inner._parameters.items():
            if p is None or not _is_kept(f"{name}.{short}" if name else short, p):
                continue
            known = first.setdefault(p, (f"{name}.{short}" if name else short, owner.get(inner)))
            if known[1] is not owner.get(inner):
                made[p] = known[0]
    return [(name, p) for p, name in made.items()]


def _pieces(
    name: str, module: torch.nn.Module, taken: set[torch.nn.Parameter], ordered: Container[torch.nn.Module]
) -> Iterator[tuple[str, _Named, torch.nn.Module | None]]:
    named = [(n, p) for n, p in module.named_parameters(name) if p not in taken and _is_kept(n, p)]
    children = [(n, child) for n, child in module.named_children() if next(child.parameters(), None) is not None]
    lists = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    has_list = any(m in ordered or (isinstance(m, lists) and next(m.parameters(), None) is not None) for m in module.modules())
    if module in ordered:
        children = []
    elif children and (has_list or sum(p.numel() for _, p in named) > LARGE):
        prefix = f"{name}." if name else ""
        named = [(n, p) for n, p in named if n.removeprefix(prefix) in module._parameters]
    else:
        children = []
    taken.update(p for _, p in named)
    if named:
        yield name or "module", named, module if module in ordered else None
    for child, inner in children:
        yield from _pieces(f"{name}.{child}" if name else child, inner, taken, ordered)


def _is_kept(name: str, parameter: torch.nn.Parameter) -> bool:
    """Quantised and empty ones stay PyTorch's."""
    if isinstance(parameter, torch.nn.UninitializedParameter):
        raise ValueError(f"{name} is lazy: call the module once before")
    if parameter.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {parameter.device}: strata.torch takes parameters in main memory or a GPU's")
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


def short(name: str) -> str:
    """A name as long as strata takes one."""
    data = name.encode()
    if len(data) <= _NAME:
        return name
    return f"{data[: _NAME - 9].decode(errors='ignore')}~{zlib.crc32(data):08x}"


_HOST = torch.device("cpu")


def over(address: int, shape: torch.Size, dtype: torch.dtype, owner: object, device: torch.device = _HOST) -> torch.Tensor:
    """A tensor with a storage of its own over the engine's memory, which `owner` keeps."""
    if device != _HOST:
        return tensor_at(address, shape, dtype, owner, device)
    elems = shape.numel()
    return torch.frombuffer(memory(address, elems * dtype.itemsize, owner), dtype=dtype, count=elems).view(shape)


def pieces_of(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Parts, each with the element that it begins at: what is read of the engine at a time."""
    flat = tensor.reshape(-1)
    for first in range(0, flat.numel(), _PIECE):
        yield first, flat[first : first + _PIECE]


def read(layers: Layers, index: int, first: int, elems: int) -> torch.Tensor:
    """A part of a master."""
    master = untouched(torch.Size([elems]), torch.float32)  # in the heap these would leave holes
    layers.read(index, "WEIGHT", master.data_ptr(), first=first, elems=elems)
    return master


def followed(master: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """The master of a weight that someone may have set; None where the weight is what the master rounds to."""
    same = master.to(weight.dtype) == weight
    if weight.dtype == torch.bfloat16:  # trained ones are rounded away from zero where two are as near
        away = (master.view(torch.int32) + 0x8000) >> 16
        same |= away.to(torch.int16) == weight.view(torch.int16)
    same |= master.isnan() & weight.isnan()
    return None if bool(same.all()) else torch.where(same, master, weight.float())


def differs(layers: Layers, index: int, weight: torch.Tensor) -> bool:
    """Whether the engine has another one."""
    made = any(followed(read(layers, index, first, part.numel()), part) is not None for first, part in pieces_of(weight))
    release([weight])
    return made


def put(master: torch.Tensor, weight: torch.Tensor, trained: bool) -> None:
    """The weight that the engine makes of a master, which is not kept."""
    if weight.dtype == torch.bfloat16 and trained:  # rounded away from zero where two are as near
        nothing = master.isnan()
        weight.view(torch.int16).copy_(master.view(torch.int32).add_(0x8000).bitwise_right_shift_(16))
        weight.masked_fill_(nothing, float("nan"))
    else:
        weight.copy_(master)


def absent(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device = _HOST) -> torch.Tensor:
    """Shape and dtype of a parameter without memory: who reads it is told so."""
    if device == _HOST:
        made = untouched(shape, dtype)
    else:
        made = torch.empty(shape, dtype=dtype, device=device)
        made.untyped_storage().resize_(0)
    text = f"{name} is paged: engine.gathered(), engine.module.state_dict() and save_pretrained() read it"
    torch._C._set_storage_data_ptr_access_error_msg(made.untyped_storage()._cdata, text)
    return made


def cast_norms(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Batch norms compute in the dtype of the model, other buffers keep theirs."""
    for inner in module.modules():
        if isinstance(inner, torch.nn.modules.batchnorm._NormBase):
            for buffer in inner.buffers(recurse=False):
                if buffer.is_floating_point():
                    buffer.data = buffer.data.to(dtype)
