"""Checkpoints of an engine as safetensors, and as state dicts: under the module's names, at full precision or rounded.

    strata.export("checkpoints", "out", dtype="bf16")       writes out/model.safetensors

Weights are read part by part, with their checksums: what is written need not fit memory.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._abi import Text, encoded
from .._calls import Stop
from .._library import Library
from .._report import abi
from ..files import new_file, place_of
from ..layers import memory
from .pages import DTYPES, Kept, put, short
from .saves import read_beside

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.bool: "BOOL"}
_NAMES.update({torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"})
WANTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Part = Callable[[str, int, torch.Tensor, torch.dtype], None]  # tensor, its first element, values, the run's dtype
Progress = Callable[[str, int, int], object]


def names_of(module: torch.nn.Module, kept: Iterable[Kept]) -> dict[str, str | None]:
    """What a state dict has, in its order: the engine's name of each parameter; None: a buffer."""
    known = {k.parameter: short(k.name) for k in kept}
    names: dict[str, str | None] = {}
    for name, inner in module.named_modules(remove_duplicate=False):
        prefix = f"{name}.".replace("_orig_mod.", "") if name else ""
        names.update({prefix + n: known[p] for n, p in inner._parameters.items() if p is not None and p in known})
        buffers = (n for n, b in inner._buffers.items() if b is not None and n not in inner._non_persistent_buffers_set)
        names.update(dict.fromkeys(prefix + n for n in buffers))
    return names


@dataclass
class Saved:
    """A checkpoint of an engine."""

    place: Path  # of strata's
    shapes: dict[str, torch.Size]  # of the engine's tensors
    frozen: set[str]
    names: dict[str, str | None]  # as names_of()
    buffers: dict[str, torch.Tensor]

    def read(self, take: Part, progress: Progress | None = None) -> None:
        """Hand over the tensors: masters of those that are trained, weights of frozen ones."""
        stop = Stop(progress)
        raised: list[BaseException] = []
        dtypes = {abi().value(f"STRATA_{name}"): dtype for name, dtype in DTYPES.items()}

        def taken(_: Any, tensor: Any, first: int, count: int, values: Any) -> bool:
            try:
                part = torch.frombuffer(memory(ctypes.addressof(values.contents), 4 * count, None), dtype=torch.float32)
                take(tensor.contents.name.decode(), first, part, dtypes[tensor.contents.dtype])
            except BaseException as error:
                raised.append(error)
            return not raised

        function = Library.get().callback("strata_verify_tensor_fn", taken)
        opts = abi().make("strata_verify_opts", progress=stop.function)
        try:
            stop.call(lambda: abi().strata_verify_tensors(encoded(self.place), ctypes.byref(opts), function, None))
        except Exception:
            if raised:
                raise raised[0] from None
            raise

    def state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, torch.Tensor]:
        """fp32, tied parameters as one tensor; buffers as they were."""
        made = {name: torch.empty(shape) for name, shape in self.shapes.items()}

        def take(name: str, first: int, part: torch.Tensor, _: torch.dtype) -> None:
            made[name].view(-1)[first : first + part.numel()] = part

        self.read(take)
        left_out = self.frozen if exclude_frozen_parameters else set()
        return {
            name: self.buffers[name] if own is None else made[own] for name, own in self.names.items() if own not in left_out
        }

    def write(self, path: Path, dtype: torch.dtype | None, progress: Progress | None = None) -> None:
        """A file of safetensors.  dtype None: that of the run's weights; buffers keep theirs."""
        run = DTYPES[{"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[_manifest(self.place)["model"]["dtype"]]]
        wanted = dtype or run
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        begins: dict[str, list[int]] = {}
        at = 0
        for name, own in self.names.items():
            shape, kind = (self.buffers[name].shape, self.buffers[name].dtype) if own is None else (self.shapes[own], wanted)
            begins.setdefault(name if own is None else own, []).append(at)
            header[name] = {
                "dtype": _NAMES[kind],
                "shape": list(shape),
                "data_offsets": [at, at + shape.numel() * kind.itemsize],
            }
            at = header[name]["data_offsets"][1]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with new_file(path, True, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 + len(text) + at)
            file.write(len(text).to_bytes(8, "little") + text)
            base = file.tell()

            def append(name: str, first: int, values: torch.Tensor) -> None:
                for begin in begins.get(name, ()):
                    file.seek(base + begin + first * values.dtype.itemsize)
                    file.write(memory(values.data_ptr(), values.nbytes, values))

            for name in (name for name, own in self.names.items() if own is None and self.buffers[name].numel() > 0):
                append(name, 0, self.buffers[name].contiguous())

            def take(name: str, first: int, part: torch.Tensor, kind: torch.dtype) -> None:
                rounded = torch.empty(part.shape, dtype=wanted)
                put(part, rounded, kind == wanted)
                append(name, first, rounded)

            self.read(take, progress)


def _manifest(place: Path) -> Any:
    return json.loads((place / "manifest.json").read_bytes())


def saved_at(checkpoint: Text, tag: str | None = None, trusted: bool = False) -> Saved:
    """A directory of checkpoints, or one of them.  trusted: as for Engine.load()."""
    place = place_of(checkpoint, tag)
    if place is None:
        raise FileNotFoundError(f"{os.fsdecode(checkpoint)} has no checkpoint {tag or 'that its latest names'} of an engine's")
    told = _manifest(place / "strata")["tensors"]
    shapes = {t["name"]: torch.Size(int(size) for size in t.get("shape", "").split("x") if size) for t in told}
    beside = read_beside(place, 0, trusted)
    buffers = beside["buffers"]
    names = beside.get("names") or {**{name: name for name in shapes}, **dict.fromkeys(buffers)}
    names = {name: own for name, own in names.items() if own is not None or name in buffers}
    return Saved(place / "strata", shapes, {t["name"] for t in told if t["group"] == "frozen"}, names, buffers)


def export(checkpoint: Text, out: Text, dtype: str | None, overwrite: bool, progress: Progress | None) -> Path:
    """Of strata.export()."""
    if dtype is not None and dtype not in WANTED:
        raise ValueError(f"dtype is {dtype}: {', '.join(WANTED)} are possible")
    saved = saved_at(checkpoint)
    directory = Path(os.fsdecode(out))
    path = directory / "model.safetensors"
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there: overwrite=True replaces it")
    directory.mkdir(parents=True, exist_ok=True)
    saved.write(path, WANTED[dtype] if dtype else None, progress)
    return directory
