"""An optimizer's state on drives: arrays of many owners, in chunks that pass through a few buffers.

A chunk holds pieces of at most half a Mi elements together, and is read and written as one.  Directories take turns, and files
have no names: they are gone however the process ends.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ._abi import Text
from ._report import abi
from .errors import Error
from .io import IO, File, Request, Transfer

_CHUNK_PACKS = 128  # of STRATA_OPTIM_PACK elements: 4 MiB of two fp32 moments
_AHEAD = 4  # chunks that are read while one is changed
_BUFFERS = 8  # that one, those, and three that are being written


@dataclass(eq=False)
class Piece:
    """Elements of one owner in a chunk."""

    owner: Any
    first: int
    elems: int
    offsets: dict[str, int]  # of each array's part in the chunk, in bytes


@dataclass(eq=False)
class Chunk:
    pieces: list[Piece] = field(default_factory=list)
    bytes: int = 0
    offset: int = 0
    file: File | None = None

    def transfer(self, data: Any, write: bool, offset: int = 0) -> Transfer:
        assert self.file is not None
        return Transfer(self.file, self.offset + offset, data, write)


class Drive:
    """Arrays by owner and name, all zeros at first.  `size_of(name, n)`: bytes of the first n elements of an array."""

    def __init__(self, paths: Sequence[Text], size_of: Callable[[str, int], int]) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self._size_of = size_of
        self._io: IO | None = None
        self._buffers: list[memoryview] = []
        self._chunks: list[Chunk] = []
        self._places: dict[Any, list[tuple[Chunk, Piece]]] = {}
        with IO() as io:
            for path in self.paths:
                io.file(path, "t").close()

    def __contains__(self, owner: Any) -> bool:
        return owner in self._places

    def place(self, owners: Mapping[Any, tuple[int, Sequence[str]]]) -> None:
        """Reserve the space of each owner's arrays, by elements and names: all of it, or an error and none."""
        chunks = self._cut(owners)
        needed = self._spread(chunks)
        files: list[File | None] = []
        try:
            for path, size in zip(self.paths, needed):
                files.append(self._opened().file(path, "t", bytes=size) if size else None)
        except BaseException:
            for file in filter(None, files):
                file.close()
            raise
        for turn, chunk in enumerate(chunks):
            chunk.file = files[turn % len(files)]
        self._chunks += chunks
        self._places.update({owner: [] for owner in owners})
        for chunk in chunks:
            for piece in chunk.pieces:
                self._places[piece.owner].append((chunk, piece))

    def _opened(self) -> IO:
        if self._io is None:
            self._io = IO()
        return self._io

    def _cut(self, owners: Mapping[Any, tuple[int, Sequence[str]]]) -> list[Chunk]:
        pack = int(abi().constant("STRATA_OPTIM_PACK"))
        chunks: list[Chunk] = []
        room = 0  # elements, in packs: what an owner leaves of its last one is not used
        for owner, (elems, names) in owners.items():
            first = 0
            while first < elems:
                if room == 0:
                    chunks.append(Chunk())
                    room = _CHUNK_PACKS * pack
                piece = Piece(owner, first, min(room, elems - first), {})
                for name in names:
                    piece.offsets[name] = chunks[-1].bytes
                    chunks[-1].bytes += _rounded(self._size_of(name, piece.elems), 64)
                chunks[-1].pieces.append(piece)
                first += piece.elems
                room -= _rounded(piece.elems, pack)
        for chunk in chunks:
            chunk.bytes = _rounded(chunk.bytes, 4096)
        return chunks

    def check_room(self, owners: Mapping[Any, tuple[int, Sequence[str]]]) -> None:
        """Whether place() would find the space."""
        self._spread(self._cut(owners))

    def _spread(self, chunks: list[Chunk]) -> list[int]:
        """Deal chunks out to the directories; the bytes that each needs.  Those of one file system share its free space."""
        needed = [0] * len(self.paths)
        for turn, chunk in enumerate(chunks):
            chunk.offset = needed[turn % len(needed)]
            needed[turn % len(needed)] += chunk.bytes
        together: dict[int, int] = {}
        for path, size in zip(self.paths, needed):
            device, system = os.stat(path).st_dev, os.statvfs(path)
            together[device] = together.get(device, 0) + size
            free = system.f_bavail * system.f_frsize
            if together[device] > free:
                lacking = f"the state needs {_mib(together[device])} there, and {_mib(free)} are free"
                raise Error(
                    "E_NOSPC",
                    f"{os.fsdecode(path)}: {lacking}",
                    exit_code=abi().strata_status_exit_code(abi().value("STRATA_E_NOSPC")),
                    key="nvme_path",
                    remedy='free space, name another directory in nvme_path, or take moments="8bit"',
                )
        return needed

    def passing(self, owners: Collection[Any]) -> Generator[tuple[Chunk, memoryview], None, None]:
        """Each chunk that holds a piece of these.  What was changed in its buffer is written when the next one is asked for."""
        chunks = [chunk for chunk in self._chunks if any(piece.owner in owners for piece in chunk.pieces)]
        self._make_buffers(max((chunk.bytes for chunk in chunks), default=0))
        reads: deque[Request] = deque()
        writes: deque[Request] = deque()
        begun = 0
        try:
            for turn, chunk in enumerate(chunks):
                while begun < min(len(chunks), turn + _AHEAD + 1):
                    if begun >= _BUFFERS:
                        writes.popleft().wait()
                    reads.append(chunks[begun].transfer(self._buffer(begun, chunks[begun]), False).start())
                    begun += 1
                reads.popleft().wait()
                yield chunk, self._buffer(turn, chunk)
                writes.append(chunk.transfer(self._buffer(turn, chunk), True).start())
            while writes:
                writes.popleft().wait()
        finally:
            for request in (*reads, *writes):
                with suppress(Error):  # an earlier failure is on its way
                    request.wait()

    def _make_buffers(self, size: int) -> None:
        if size > 0 and (not self._buffers or self._buffers[0].nbytes < size):
            self._buffers = []
            self._buffers = [self._opened().buffer(size) for _ in range(_BUFFERS)]

    def _buffer(self, turn: int, chunk: Chunk) -> memoryview:
        return self._buffers[turn % _BUFFERS][: chunk.bytes]

    def move(self, owner: Any, arrays: dict[str, Any], write: bool) -> None:
        """Write or read whole arrays of an owner, given as bytes that can be sliced."""
        transfers = []
        for chunk, piece in self._places[owner]:
            for name, data in arrays.items():
                begin = self._size_of(name, piece.first)
                part = data[begin : begin + self._size_of(name, piece.elems)]
                transfers.append(chunk.transfer(part, write, piece.offsets[name]))
        if transfers:
            self._opened().wait(self._opened().start(transfers))

    def clear(self) -> None:
        """Forget everything; the space is free again."""
        for file in {chunk.file for chunk in self._chunks if chunk.file is not None}:
            file.close()
        self._chunks, self._places, self._buffers = [], {}, []
        if self._io is not None:
            with suppress(BufferError):  # an exception's frames hold one: the last of them closes it
                self._io.close()
        self._io = None


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
