"""Asynchronous reads and writes of files at the speed of the drive (docs/io.md).

    with strata.io.IO(queue_depth=32) as io, io.file("/nvme/state", "c", bytes=1 << 30) as file:
        requests = io.start([file.write(array, 0), file.write(other, 4096)])    # one call for all
        ...
        for request in requests:
            request.wait()

In a coroutine, `await request` waits without a thread.  AsyncIO is the same with the names of DeepSpeed's handle.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
import weakref
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._abi import Text, encoded
from ._calls import Handle, blocked
from ._library import Library
from ._report import abi
from .errors import Error

if TYPE_CHECKING:
    import asyncio

_SLICE = 0.1  # seconds between two looks for signals

_MODES = {
    "r": ("READ",),
    "w": ("WRITE", "CREATE", "TRUNCATE"),
    "r+": ("READ", "WRITE"),
    "w+": ("READ", "WRITE", "CREATE", "TRUNCATE"),
    "c": ("READ", "WRITE", "CREATE"),
    "t": ("READ", "WRITE", "UNNAMED"),
}


def memory_of(data: Any, written: bool) -> tuple[int, int, Any]:
    """Address, bytes and owner of a buffer: bytes, bytearray, memoryview, an array of numpy's, a tensor on the CPU."""
    if hasattr(data, "data_ptr"):
        if data.device.type != "cpu" or not data.is_contiguous():
            raise ValueError("a tensor for I/O is contiguous and on the CPU")
        return data.data_ptr(), data.numel() * data.element_size(), data
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("a buffer for I/O is contiguous")
    if view.nbytes == 0:
        return 0, 0, data
    if view.readonly:
        if written:
            raise ValueError("a read needs a buffer that can be written")
        copy = data if isinstance(data, bytes) else view.tobytes()
        return ctypes.cast(ctypes.c_char_p(copy), ctypes.c_void_p).value or 0, len(copy), copy
    flat = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
    return ctypes.addressof(flat), view.nbytes, flat


@dataclass(frozen=True)
class Transfer:
    """A read or a write, to be started by IO.start() or by start()."""

    file: File
    offset: int
    data: Any
    is_write: bool

    def start(self) -> Request:
        return self.file.io.start([self])[0]


class Request:
    """A transfer that was started.  Its memory is borrowed until it has ended."""

    def __init__(self, io: IO, bits: int, size: int, memory: Any) -> None:
        self._io = io
        self._bits = bits
        self._memory = memory
        self._error: Error | None = None
        self.bytes = size

    @property
    def done(self) -> bool:
        """Whether it has ended; result() says how."""
        return self._bits == 0 or self._take(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; the bytes that were moved.  TimeoutError: it goes on."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self._bits != 0 and not self._take(max(0.0, min(_SLICE, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise TimeoutError(f"the transfer of {self.bytes} bytes has not ended after {timeout} seconds")
        return self.result()

    def result(self) -> int:
        """Bytes of a transfer that has ended."""
        if self._error is not None:
            raise self._error
        return self.bytes

    def cancel(self) -> None:
        """Ask it to end early; wait() then raises E_CANCELLED, if a part of it was left out."""
        if self._bits != 0:
            abi().strata_io_cancel(self._io.pointer, self._handle())

    def _handle(self) -> Any:
        return abi().make("strata_io_request", bits=self._bits)

    def _take(self, seconds: float) -> bool:
        """Its status, if it ends by then: it is handed out once."""
        try:
            abi().strata_io_wait(self._io.pointer, self._handle(), seconds, None)
        except Error as error:
            if error.status == "E_BUSY":
                return False
            self._error = error
        self._io.forget(self._bits)
        self._bits = 0
        self._memory = None
        return True

    def __await__(self) -> Generator[Any, None, int]:
        while not self.done:
            yield from self._io.ended().__await__()
        return self.result()


class File(Handle):
    """A file, open through an IO."""

    def __init__(self, io: IO, path: Text, mode: str, bytes: int, buffered: bool) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        flags = sum(abi().value(f"STRATA_IO_{flag}") for flag in _MODES[mode])
        flags += abi().value("STRATA_IO_BUFFERED") if buffered else 0
        opened = abi().handle("strata_io_file")
        abi().strata_io_open_file(io.pointer, ctypes.byref(opened), encoded(path), flags, bytes)
        super().__init__(opened, "strata_io_close_file", owner=io)
        self.io = io

    @property
    def bytes(self) -> int:
        """Its size, after the writes that have ended."""
        return int(abi().strata_io_file_bytes(self.pointer))

    @property
    def direct(self) -> bool:
        """Whether it goes past the page cache."""
        return bool(abi().strata_io_file_direct(self.pointer))

    def read(self, data: Any, offset: int = 0) -> Transfer:
        """Fill a buffer from the file, once started."""
        return Transfer(self, offset, data, False)

    def write(self, data: Any, offset: int = 0) -> Transfer:
        return Transfer(self, offset, data, True)

    def sync(self) -> None:
        """Wait for its requests, and until everything written would survive a loss of power."""
        blocked(lambda: abi().strata_io_sync_file(self.pointer))


class IO(Handle):
    """A queue of transfers and the thread that serves it."""

    def __init__(
        self,
        *,
        method: str | None = None,
        queue_depth: int = 0,
        block_bytes: int = 0,
        buffer_bytes: int = 0,
        threads: int = 0,
    ) -> None:
        def work() -> Any:
            opened = abi().handle("strata_io")
            opts = abi().make(
                "strata_io_opts",
                method=method,
                queue_depth=queue_depth,
                block_bytes=block_bytes,
                buffer_bytes=buffer_bytes,
                threads=threads,
            )
            abi().strata_io_open(ctypes.byref(opened), ctypes.byref(opts))
            return opened

        super().__init__(blocked(work), "strata_io_close")
        self._pending: dict[int, Request] = {}  # memory stays until a transfer has ended, also of those nobody waits for
        self._files: weakref.WeakSet[File] = weakref.WeakSet()
        self._buffers: list[weakref.ref[Any]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def file(self, path: Text, mode: str = "r", *, bytes: int = 0, buffered: bool = False) -> File:
        """Open a file; `bytes`: make it at least this long and reserve the space.

        Modes are "r", "r+", "w" and "w+" as elsewhere, "c" to create what is not there, "t" for a new file without a name in a
        directory.
        """
        opened = blocked(lambda: File(self, path, mode, bytes, buffered))
        self._files.add(opened)
        return opened

    def start(self, transfers: Iterable[Transfer]) -> list[Request]:
        """Start all of them, by one call, or none."""
        asked = list(transfers)
        memory = [memory_of(transfer.data, not transfer.is_write) for transfer in asked]
        made = (abi().struct("strata_io_transfer") * len(asked))()
        for row, transfer, (address, size, _) in zip(made, asked, memory):
            row.file = transfer.file.pointer
            row.offset, row.buf, row.bytes, row.write = transfer.offset, address, size, transfer.is_write
        abi().strata_io_start(self.pointer, made, len(asked))
        requests = [Request(self, row.request.bits, row.bytes, owner) for row, (_, _, owner) in zip(made, memory)]
        self._pending.update({request._bits: request for request in requests})
        return requests

    def wait(self, requests: Sequence[Request] | None = None) -> int:
        """Wait for these, or for all that were started; how many.  Raises the first failure, after all have ended."""
        waited = list(self._pending.values()) if requests is None else list(requests)
        errors = []
        for request in waited:
            try:
                request.wait()
            except Error as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return len(waited)

    def forget(self, bits: int) -> None:
        self._pending.pop(bits, None)

    @property
    def method(self) -> str:
        return str(abi().strata_io_get_method(self.pointer).decode())

    @property
    def counters(self) -> dict[str, int]:
        """What it has done: reads, writes, bytes_read, bytes_written, failed, ..."""
        counters = abi().make("strata_io_counters")
        abi().strata_io_get_counters(self.pointer, ctypes.byref(counters))
        return dict(abi().members(counters))

    def buffer(self, size: int) -> memoryview:
        """Aligned memory, the fastest for transfers.  The IO cannot be closed before it is dropped."""
        address = ctypes.c_void_p()
        abi().strata_io_buffer_alloc(self.pointer, ctypes.byref(address), size)
        memory = (ctypes.c_char * size).from_address(address.value or 0)
        memory.owner = self  # type: ignore[attr-defined]
        close = Library.get().close
        weakref.finalize(memory, close, "strata_io_buffer_free", (self._pointer, address), self.process, self._finalizer)
        self._buffers.append(weakref.ref(memory))
        return memoryview(memory).cast("B")

    def fileno(self) -> int:
        """Readable when requests have ended; for select, epoll and event loops."""
        descriptor = ctypes.c_int()
        abi().strata_io_event_fd(self.pointer, ctypes.byref(descriptor))
        return descriptor.value

    async def ended(self) -> None:
        """Wait until some request has ended."""
        import asyncio  # takes longer than all of strata to import

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._waiters = []
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            loop.add_reader(self.fileno(), self._wake)
        await waiter

    def _wake(self) -> None:
        descriptor = self.fileno()
        try:
            os.read(descriptor, 8)
        except BlockingIOError:
            return
        waiters, self._waiters = self._waiters, []
        if self._loop is not None:
            self._loop.remove_reader(descriptor)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Finish what was started, close the files.  Raises the first failure that nobody has asked for."""
        if self.closed or self.process != os.getpid():
            return
        if any(buffer() is not None for buffer in self._buffers):
            raise BufferError("buffers of this IO are in use: drop them before it is closed")
        for file in list(self._files):
            file.close()
        pointer = self.release()
        blocked(lambda: abi().strata_io_close(pointer))
        self._pending.clear()


class AsyncIO(IO):
    """DeepSpeed's aio_handle (DeepNVMe), for tensors, arrays and buffers."""

    def __init__(
        self,
        block_size: int = 1 << 20,
        queue_depth: int = 32,
        single_submit: bool = False,
        overlap_events: bool = True,
        intra_op_parallelism: int = 1,
    ) -> None:
        super().__init__(block_bytes=block_size, queue_depth=queue_depth)
        self._opened: dict[tuple[bytes, str], File] = {}

    def _file(self, path: Text, mode: str) -> File:
        """A file that was written is read the same way; one that was only read is opened anew."""
        name = encoded(path)
        if mode == "c" and (name, "r") in self._opened:
            self._opened.pop((name, "r")).close()
        for known in ("c", mode):
            if (name, known) in self._opened:
                return self._opened[name, known]
        self._opened[name, mode] = self.file(path, mode)
        return self._opened[name, mode]

    def async_pread(self, buffer: Any, filename: Text, file_offset: int = 0) -> int:
        self._file(filename, "r").read(buffer, file_offset).start()
        return 0

    def async_pwrite(self, buffer: Any, filename: Text, file_offset: int = 0) -> int:
        self._file(filename, "c").write(buffer, file_offset).start()
        return 0

    def sync_pread(self, buffer: Any, filename: Text, file_offset: int = 0) -> int:
        self._file(filename, "r").read(buffer, file_offset).start().wait()
        return 1

    def sync_pwrite(self, buffer: Any, filename: Text, file_offset: int = 0) -> int:
        self._file(filename, "c").write(buffer, file_offset).start().wait()
        return 1

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Any) -> Any:
        """A tensor in memory that is aligned for transfers."""
        import torch

        return torch.frombuffer(self.buffer(num_elem * example_tensor.element_size()), dtype=example_tensor.dtype)
