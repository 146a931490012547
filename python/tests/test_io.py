"""strata.io: batches, waiting, coroutines, memory."""

from __future__ import annotations

import asyncio
import os
import unittest

import strata
from strata.io import IO, AsyncIO

from .common import InScratch

MIB = 1 << 20


class Io(InScratch):
    def test_what_is_written_is_read(self) -> None:
        data = os.urandom(3 * MIB + 11)
        back, tail = bytearray(len(data)), bytearray(100)
        with IO(queue_depth=8) as io, io.file(self.scratch / "a", "c", bytes=4 * MIB) as file:
            self.assertEqual(file.write(data, 5).start().wait(), len(data))
            for request in io.start([file.read(back, 5), file.read(tail, 5 + len(data) - 100)]):
                request.wait()
            self.assertEqual(io.counters["reads"], 2)
            file.sync()
        self.assertEqual((bytes(back), bytes(tail)), (data, data[-100:]))

    def test_a_file_without_a_name_is_nowhere(self) -> None:
        before = os.listdir(self.scratch)
        back = bytearray(4)
        with IO() as io, io.file(self.scratch, "t", bytes=MIB) as file:
            file.write(b"1234", MIB - 4).start()
            file.read(back, MIB - 4).start().wait()
            self.assertEqual((os.listdir(self.scratch), file.bytes), (before, MIB))
        self.assertEqual(back, b"1234")

    def test_a_request_that_nobody_waits_for_keeps_its_memory(self) -> None:
        io = IO()
        io.file(self.scratch / "b", "c").write(bytearray(b"x" * MIB)).start()
        io.close()
        self.assertEqual((self.scratch / "b").read_bytes(), b"x" * MIB)

    def test_a_read_past_the_end_fails_once_and_is_named(self) -> None:
        (self.scratch / "short").write_bytes(b"1234")
        with IO() as io, io.file(self.scratch / "short") as file:
            request = file.read(bytearray(10)).start()
            with self.assertRaisesRegex(strata.Error, "short") as raised:
                request.wait()
            self.assertEqual(raised.exception.status, "E_TRUNC")
            self.assertTrue(request.done)

    def test_coroutines_wait_without_a_thread(self) -> None:
        async def copy() -> int:
            with IO() as io, io.file(self.scratch / "c", "c") as file:
                parts = [bytes([number]) * MIB for number in range(8)]
                await asyncio.gather(*(wait(file.write(part, n * MIB).start()) for n, part in enumerate(parts)))
                back = [bytearray(MIB) for _ in parts]
                moved = await asyncio.gather(*(wait(file.read(part, n * MIB).start()) for n, part in enumerate(back)))
                self.assertEqual(parts, [bytes(part) for part in back])
                return sum(moved)

        async def wait(request: strata.io.Request) -> int:
            return await request

        self.assertEqual(asyncio.run(copy()), 8 * MIB)

    def test_buffers_of_an_io_outlive_it_not(self) -> None:
        io = IO(buffer_bytes=MIB)
        buffer = io.buffer(MIB)
        buffer[:4] = b"abcd"
        io.file(self.scratch / "d", "c").write(buffer).start().wait()
        with self.assertRaises(BufferError):
            io.close()
        del buffer
        io.close()
        self.assertEqual((self.scratch / "d").read_bytes()[:4], b"abcd")

    def test_deepspeeds_names(self) -> None:
        handle = AsyncIO(block_size=MIB, queue_depth=4)
        path = self.scratch / "e"
        self.assertEqual(handle.sync_pwrite(bytearray(b"12345678"), path), 1)
        handle.async_pwrite(bytearray(b"ab"), path, 2)
        self.assertEqual(handle.wait(), 1)
        back = bytearray(8)
        handle.async_pread(back, path)
        self.assertEqual(handle.wait(), 1)
        handle.close()
        self.assertEqual(bytes(back), b"12ab5678")

    def test_wrong_uses(self) -> None:
        (self.scratch / "f").write_bytes(bytes(4096))
        with IO() as io, io.file(self.scratch / "f") as file:
            for wrong, raised in (
                (lambda: IO(method="none of them"), strata.Error),
                (lambda: IO(queue_depth=100000), strata.Error),
                (lambda: io.file(self.scratch / "missing"), strata.Error),
                (lambda: io.file(self.scratch), strata.Error),
                (lambda: io.file(self.scratch / "f", "rw"), ValueError),
                (lambda: io.file("a\0b"), ValueError),
                (lambda: file.read(b"1234").start(), ValueError),
                (lambda: file.read("text").start(), TypeError),
                (lambda: file.read(memoryview(bytearray(16))[::2]).start(), ValueError),
                (lambda: file.write(bytearray(4)).start(), strata.Error),
                (lambda: file.read(bytearray(4), 1 << 63).start(), strata.Error),
            ):
                with self.assertRaises(raised):
                    wrong()
        with self.assertRaises(ValueError):
            io.file(self.scratch / "f")
        with self.assertRaises(ValueError):
            file.read(bytearray(4)).start()


if __name__ == "__main__":
    unittest.main()
