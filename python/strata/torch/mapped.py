"""Tensors whose memory is a file's: weights that wait for their engine, and state dicts of one, are never whole in memory.

A room gives tensors over a file without a name on a drive, or over memory that only what is written takes.  Weights that
a state dict has from a file, as safetensors gives them, stay in that file: the parameter gets them by a mapping of its own,
which keeps what is changed in it to itself.  release() takes what a process has read or written off its resident memory; pages
that are this process's alone stay.

A mapping ends the process by SIGBUS where its file has nothing.  So a room's file has its blocks before a tensor lies there.
Others' files, which anyone may shorten, are read by copied(), which refuses what is not there or has changed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

_SEGMENT = 1 << 30  # bytes of a room's file, of which it has what tensors take: it goes when all of them are gone
_SMALL = 1 << 16  # bytes of a tensor that is left where it is
_HELD = 1 << 28  # bytes given by a room, after which its pages are released
_PAGE = mmap.PAGESIZE


class _Map(mmap.mmap):
    """A file in memory."""

    start: int
    private: bool  # what is written stays this process's
    source: tuple[Any, ...]  # which file, for those of others
    file: int  # its descriptor

    def _begins(self, file: int, source: tuple[Any, ...] = ()) -> _Map:
        self.private, self.source, self.file = bool(source), source, os.dup(file)
        self.close_file = weakref.finalize(self, os.close, self.file)
        self.start = torch.frombuffer(self, dtype=torch.uint8, count=1).data_ptr()
        _maps.add(self)
        return self

    def check(self) -> None:
        """The file of others is the one that was mapped."""
        path, _, size, written = self.source
        told = os.fstat(self.file)
        if (told.st_size, told.st_mtime_ns) != (size, written):
            raise RuntimeError(
                f"{path} has weights that wait there for their engine, and was changed since they were loaded: it had "
                f"{size:,} bytes and has {told.st_size:,}. Load the model again, and leave its files until its engine is made"
            )


_maps: weakref.WeakSet[_Map] = weakref.WeakSet()
_files: weakref.WeakValueDictionary[tuple[Any, ...], _Map] = weakref.WeakValueDictionary()


def untouched(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros that takes memory where it is written to, and gives it back when it goes."""
    size = shape.numel() * dtype.itemsize
    if size < _SMALL:
        return torch.zeros(shape, dtype=dtype)
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(made, dtype=dtype).view(shape)


class Room:
    """Memory for tensors, on the drive of a directory; None: in main memory."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._last: _Map | None = None
        self._at = self._held = 0

    def tensor(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Zeros."""
        size = shape.numel() * dtype.itemsize
        if self._directory is None or size < _SMALL:
            return untouched(shape, dtype)
        room = -(-size // _PAGE) * _PAGE
        try:
            if self._last is None or self._at + room > len(self._last):
                if self._last is not None:
                    self._last.close_file()
                self._last, self._at = _segment(self._directory, max(room, _SEGMENT)), 0
            os.posix_fallocate(self._last.file, self._at, room)
        except OSError as error:
            free = os.statvfs(self._directory)
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}: a weight of {size:,} bytes waits there for its engine, and "
                f"{free.f_bavail * free.f_frsize:,} are free. Make room, or name another drive as nvme_path",
                self._directory,
            ) from None
        part = memoryview(self._last)[self._at : self._at + room]
        weakref.finalize(part, _give_back, weakref.ref(self._last), self._at, room).atexit = False  # with the tensor's memory
        self._at += room
        self._held += size
        if self._held > _HELD:
            self._held = 0
            for known in list(_maps):
                if not known.private:
                    known.madvise(mmap.MADV_DONTNEED)
        return torch.frombuffer(part, dtype=dtype, count=shape.numel()).view(shape)


def _segment(directory: str, size: int) -> _Map:
    with tempfile.TemporaryFile(dir=directory) as file:
        file.truncate(size)
        return _Map(file.fileno(), size)._begins(file.fileno())


def _give_back(known: weakref.ref[_Map], at: int, size: int) -> None:
    """A part of a room's file to its drive."""
    segment = known()
    if segment is not None:
        with suppress(OSError):  # not every file system can: it has that back with the file
            segment.madvise(mmap.MADV_REMOVE, at, size)


def unchanged(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse those whose file has changed."""
    for known in {_map_of(tensor) for tensor in tensors}:
        if known is not None and known.private:
            known.check()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor that can be read safely: itself, or a copy where it is of others' file."""
    known = _map_of(tensor)
    if known is None or not known.private:
        return tensor
    made = untouched(tensor.shape, tensor.dtype)
    into = memoryview((ctypes.c_char * tensor.nbytes).from_address(made.data_ptr())).cast("B")
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # where there is nothing it fails without a signal
        memory.seek(tensor.data_ptr())
        at = 0
        while at < len(into):
            try:
                count = memory.readinto(into[at:])
            except OSError:
                count = 0
            known.check()
            if not count:
                raise RuntimeError(f"{known.source[0]} cannot be read: weights wait there for their engine")
            at += count
    return made


def release(tensors: Iterable[torch.Tensor]) -> None:
    """Take what lies in a file off resident memory."""
    for tensor in tensors:
        known = _map_of(tensor)
        if known is None:
            continue
        first = (tensor.data_ptr() - known.start) // _PAGE * _PAGE
        size = min(tensor.data_ptr() - known.start + tensor.nbytes, len(known)) - first
        if not (known.private and _is_changed(known.start + first, size)):
            known.madvise(mmap.MADV_DONTNEED, first, size)


def source_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Which bytes of which file an unchanged tensor is; None: of none."""
    known = _map_of(tensor)
    if known is None or not known.source or _is_changed(tensor.data_ptr(), tensor.nbytes):
        return None
    return *known.source, tensor.data_ptr() - known.start


def is_kept(tensor: torch.Tensor) -> bool:
    """Whether it takes no memory to speak of: it is small, or of a file."""
    return tensor.nbytes < _SMALL or source_of(tensor) is not None


def of_source(source: tuple[Any, ...], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
    """The tensor that source_of() has told of, perhaps in another process; None: this one sees another file."""
    path, inode, at = source[0], source[1], source[-1]
    known = _files.get(source[:-1])
    if known is None:
        try:
            with open(path, "rb") as file:
                told = os.fstat(file.fileno())
                if (told.st_ino, told.st_size, told.st_mtime_ns) != source[1:-1] or inode == 0:
                    return None
                known = _Map(file.fileno(), 0, access=mmap.ACCESS_COPY)._begins(file.fileno(), source[:-1])
        except OSError:
            return None
        _files[source[:-1]] = known
    return torch.frombuffer(known, dtype=dtype, count=shape.numel(), offset=at).view(shape)


def in_file(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same values by a mapping of one's own, where `tensor` is an unchanged part of a mapped file; else None."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes < _SMALL:
        return None
    begin = tensor.data_ptr()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as rows:
        for row in rows:
            words = row.split(None, 5)
            start, end = (int(word, 16) for word in words[0].split("-"))
            if start <= begin < end:
                break
        else:
            return None
    path = words[5].rstrip("\n") if len(words) == 6 else ""
    if not path.startswith("/") or words[1][3] != "p" or begin + tensor.nbytes > end or _is_changed(begin, tensor.nbytes):
        return None
    try:
        told = os.stat(path)
    except OSError:
        return None
    at = begin - start + int(words[2], 16)
    if told.st_ino != int(words[4]) or at % tensor.dtype.itemsize:
        return None
    return of_source((path, told.st_ino, told.st_size, told.st_mtime_ns, at), tensor.shape, tensor.dtype)


def _map_of(tensor: torch.Tensor) -> _Map | None:
    if tensor.device.type != "cpu":
        return None
    try:
        begin = tensor.data_ptr()
    except (RuntimeError, ValueError):  # of a layer that pages, or that has not been made yet
        return None
    return next((known for known in list(_maps) if known.start <= begin < known.start + len(known)), None)


def _is_changed(begin: int, size: int) -> bool:
    """Whether pages of a private mapping are this process's alone, which have been written to."""
    first, last = begin // _PAGE, (begin + size - 1) // _PAGE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(8 * first)
            found = bytearray(file.read(8 * (last - first + 1)))
    except OSError:
        return True
    pages = torch.frombuffer(found, dtype=torch.int64)
    there = (pages < 0) | (pages >> 62 & 1 == 1)  # in memory, or swapped
    return len(found) < 8 * (last - first + 1) or bool((there & (pages >> 61 & 1 == 0)).any())


def share(tensors: Iterable[torch.Tensor], rank: int) -> None:
    """Values of one rank of torch.distributed's for all: of a file that they all see without sending them."""
    known = list(tensors)
    told: list[Any] = [[source_of(tensor.data) for tensor in known]]
    torch.distributed.broadcast_object_list(told, rank)
    mine = torch.distributed.get_rank() == rank
    made = [None if source is None else of_source(source, t.shape, t.dtype) for t, source in zip(known, told[0])]
    seen = torch.tensor([one is not None for one in made], dtype=torch.int32)
    torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MIN)
    for tensor, one, there in zip(known, made, seen.tolist()):
        if not there:
            value = copied(tensor.data)
            torch.distributed.broadcast(value, rank)
            if not mine and value.data_ptr() != tensor.data_ptr():
                tensor.data = value
        elif not mine and one is not None:
            tensor.data = one
        release([tensor])


# --- modules that are made with weights in files ---

_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


@contextmanager
def made_in(room: Room) -> Iterator[None]:
    """Parameters of modules that are made within lie there, and take what load_state_dict() is given of a file from that."""

    def registered(module: torch.nn.Module, _: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None:
            move(module, parameter, room)

    hook = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        hook.remove()


def waits(parameter: torch.nn.Parameter, ends: bool = False) -> bool:
    """Whether a parameter has been moved to a room, and no engine has it.  ends: one takes it."""
    return bool(parameter.__dict__.pop("_strata_waits", False) if ends else parameter.__dict__.get("_strata_waits", False))


def move(module: torch.nn.Module, parameter: torch.nn.Parameter, room: Room) -> None:
    """A parameter goes to a room."""
    value = parameter.data
    if value.device.type != "cpu" or value.nbytes < _SMALL or not value.is_contiguous() or waits(parameter):
        return
    made = room.tensor(value.shape, value.dtype)
    bits, given = (t.view(-1).view(torch.uint8) for t in (made, value))
    for at in range(0, given.numel(), _SMALL):  # what was never written is zero, and takes no room
        part = given[at : at + _SMALL]
        if part.any():
            bits[at : at + _SMALL] = part
    parameter.data = made
    parameter._strata_waits = True  # type: ignore[attr-defined]
    if module not in _hooked:
        _hooked.add(module)
        module.register_load_state_dict_pre_hook(_takes)  # type: ignore[no-untyped-call]


def _takes(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before load_state_dict(): what a file has is not copied."""
    for name, parameter in module._parameters.items():
        given = state.get(prefix + name)
        if parameter is None or not isinstance(given, torch.Tensor) or not waits(parameter):
            continue
        if given.shape == parameter.shape and given.dtype == parameter.dtype:
            made = in_file(given)
            if made is not None:
                parameter.data = made
                state[prefix + name] = parameter  # copied to itself, which does nothing
