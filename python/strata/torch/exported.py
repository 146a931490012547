"""Checkpoints of an engine as safetensors, and as state dicts: under the module's names, at full precision or rounded.

    strata.export("checkpoints", "out", dtype="bf16")       writes out/model.safetensors
    strata.export("checkpoints", "out", max_shard_size="5GB")    or model-00001-of-00003.safetensors, ..., and their index

Weights are read part by part, with their checksums: what is written need not fit memory.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from .._abi import Text, encoded
from .._calls import Stop
from .._library import Library
from .._report import abi
from ..errors import Error, reading
from ..files import new_files, place_of
from ..layers import memory
from .beside import read_beside
from .pages import DTYPES, Kept, put, short

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.bool: "BOOL"}
_NAMES.update({torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"})
WANTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Part = Callable[[str, int, torch.Tensor, torch.dtype], None]  # tensor, its first element, values, the run's dtype
Progress = Callable[[str, int, int], object]


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By every name, as a state dict has them, but for what torch.compile() puts into names."""
    return {name.replace("_orig_mod.", ""): buffer for name, buffer in module.named_buffers(remove_duplicate=False)}


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
    run: torch.dtype  # of its weights
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

    def write(
        self,
        directory: Path,
        dtype: torch.dtype | None,
        most: int | None = None,
        overwrite: bool = True,
        progress: Progress | None = None,
    ) -> list[Path]:
        """model.safetensors, or files of at most so many bytes and their index.  dtype None: that of the run's weights; buffers
        keep theirs."""
        wanted = dtype or self.run
        for name in (name for name, own in self.names.items() if own is None and self.buffers[name].dtype not in _NAMES):
            raise Error("E_INPUT", f"buffer {name} is {self.buffers[name].dtype}: a file of safetensors has none", exit_code=2)
        shards = [_Shard(self, names, wanted) for names in self._cut(wanted, most)]
        count = len(shards)
        paths = [
            directory / ("model.safetensors" if count == 1 else f"model-{i + 1:05d}-of-{count:05d}.safetensors")
            for i in range(count)
        ]
        index = directory / "model.safetensors.index.json"
        wholes = paths if count == 1 else [*paths, index]
        there = _exported(directory)
        if there and not overwrite:
            raise FileExistsError(f"{there[0]} is there: overwrite replaces it")
        for old in (old for old in there if not old.is_file()):
            raise FileExistsError(errno.EEXIST, "is no file", str(old))
        with new_files(wholes, overwrite, "wb", stale=[index] if count > 1 else []) as files:
            for shard, file in zip(shards, files):
                shard.begin(file)
            if count > 1:
                files[-1].write(_index(shards, paths))

            def take(name: str, first: int, part: torch.Tensor, kind: torch.dtype) -> None:
                rounded = torch.empty(part.shape, dtype=wanted)
                put(part, rounded, kind == wanted)
                for shard in shards:
                    shard.append(name, first, rounded)

            self.read(take, progress)
        for old in there:
            if old not in wholes:
                old.unlink(missing_ok=True)
        return wholes

    def _cut(self, wanted: torch.dtype, most: int | None) -> list[list[str]]:
        """As huggingface_hub cuts: in order, and what is larger by itself."""
        made: list[list[str]] = []
        here: list[str] = []
        total = 0
        for name in self.names:
            size = self.bytes_of(name, wanted)
            if most is not None and size > most:
                made.append([name])
                continue
            if most is not None and total + size > most:
                made.append(here)
                here, total = [], 0
            here.append(name)
            total += size
        return [*made, here] if here or not made else made

    def bytes_of(self, name: str, wanted: torch.dtype) -> int:
        shape, kind = self._kind(name, wanted)
        return shape.numel() * kind.itemsize

    def _kind(self, name: str, wanted: torch.dtype) -> tuple[torch.Size, torch.dtype]:
        own = self.names[name]
        return (self.buffers[name].shape, self.buffers[name].dtype) if own is None else (self.shapes[own], wanted)


class _Shard:
    """A file of safetensors: where each of its tensors lies in it."""

    def __init__(self, saved: Saved, names: Sequence[str], wanted: torch.dtype) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self.names, self.bytes = names, 0
        self._begins: dict[str, list[int]] = {}
        self._buffers = {name: saved.buffers[name] for name in names if saved.names[name] is None}
        for name in names:
            shape, kind = saved._kind(name, wanted)
            begin, self.bytes = self.bytes, self.bytes + shape.numel() * kind.itemsize
            self._begins.setdefault(saved.names[name] or "", []).append(begin)
            header[name] = {"dtype": _NAMES[kind], "shape": list(shape), "data_offsets": [begin, self.bytes]}
        text = json.dumps(header).encode()
        self._header = text + b" " * (-len(text) % 8)

    def begin(self, file: IO[Any]) -> None:
        self._file, self._base = file, 8 + len(self._header)
        os.posix_fallocate(file.fileno(), 0, self._base + self.bytes)
        file.write(len(self._header).to_bytes(8, "little") + self._header)
        for begin, buffer in zip(self._begins.get("", ()), self._buffers.values()):
            self._put(begin, buffer.contiguous())

    def append(self, own: str, first: int, values: torch.Tensor) -> None:
        """A part of one of the engine's tensors, under each of its names here."""
        for begin in self._begins.get(own, ()):
            self._put(begin + first * values.dtype.itemsize, values)

    def _put(self, at: int, values: torch.Tensor) -> None:
        if values.numel() > 0:
            self._file.seek(self._base + at)
            self._file.write(memory(values.data_ptr(), values.nbytes, values))


def _index(shards: Sequence[_Shard], paths: Sequence[Path]) -> bytes:
    files = {name: path.name for shard, path in zip(shards, paths) for name in shard.names}
    told = {"metadata": {"total_size": sum(shard.bytes for shard in shards)}, "weight_map": files}
    return (json.dumps(told, indent=2, sort_keys=True) + "\n").encode()


def _exported(directory: Path) -> list[Path]:
    """What another export has left there."""
    ours = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
    return sorted(path for path in directory.iterdir() if ours.fullmatch(path.name)) if directory.is_dir() else []


def bytes_of(size: int | str | None) -> int | None:
    """5000, "5GB", "200MB": powers of ten, as transformers' max_shard_size."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "": 1}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B|)\s*", str(size), re.IGNORECASE)
    if size is not None and (found is None or float(found[1]) * units[found[2].upper()] < 1):
        raise ValueError(f'max_shard_size is {size!r}: a number of bytes, or such as "5GB", "200MB", is possible')
    return None if found is None else int(float(found[1]) * units[found[2].upper()])


def saved_of(place: Path, beside: dict[str, Any]) -> Saved:
    """beside: what rank 0 has saved."""
    manifest = beside["manifest"]
    told = manifest["tensors"]
    shapes = {t["name"]: torch.Size(int(size) for size in t.get("shape", "").split("x") if size) for t in told}
    run = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[manifest["model"]["dtype"]]
    frozen = {t["name"] for t in told if t["group"] == "frozen"}
    with reading(beside["path"]):
        for own in beside["names"].values():
            if own is not None and own not in shapes:
                raise ValueError(f"it names {own}, which the checkpoint has not")
    return Saved(place / "strata", run, shapes, frozen, dict(beside["names"]), beside["buffers"])


def saved_at(checkpoint: Text, tag: str | None = None) -> Saved:
    """A directory of checkpoints, or one of them."""
    place = place_of(checkpoint, tag)
    return saved_of(place, read_beside(place, 0))


def export(
    place: Path, directory: Path, dtype: str | None, overwrite: bool, most: int | str | None, progress: Progress | None
) -> Path:
    """Of strata.export()."""
    if dtype is not None and dtype not in WANTED:
        raise ValueError(f"dtype is {dtype}: {', '.join(WANTED)} are possible")
    shard = bytes_of(most)
    saved = saved_at(place)
    made = not directory.exists()
    if directory.is_symlink() if made else not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "no directory: name another one", str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        saved.write(directory, WANTED[dtype] if dtype else None, shard, overwrite, progress)
    except BaseException:
        if made:
            with suppress(OSError):
                directory.rmdir()
        raise
    return directory
