"""strata.optim's state on drives, without torch: chunks, directories, what is left behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import strata
from strata._drive import Drive

from .common import InScratch, open_files, threads

PACK = 4096
CHUNK = 128 * PACK  # elements
SIZES = {"a": CHUNK + PACK + 7, "b": 1, "c": 0, "d": 3 * CHUNK}


def size_of(name: str, elems: int) -> int:
    return elems * (1 if name == "thin" else 2)


def held(directory: Path) -> list[str]:
    """Files of this process in a directory, with or without a name."""
    return [name for name in open_files() if str(directory) in name]


class Chunks(InScratch):
    def setUp(self) -> None:
        self.dirs = [self.scratch / f"{self._testMethodName}{number}" for number in range(2)]
        for path in self.dirs:
            path.mkdir()
        self.drive = Drive(self.dirs, size_of)
        self.addCleanup(self.drive.clear)

    def place(self) -> None:
        self.drive.place({owner: (elems, ("thin", "wide")) for owner, elems in SIZES.items()})

    def test_what_is_changed_in_passing_is_there_the_next_time(self) -> None:
        self.place()
        for turn in range(3):
            seen = dict.fromkeys(SIZES, 0)
            for chunk, memory in self.drive.passing(set(SIZES)):
                for piece in chunk.pieces:
                    self.assertEqual(piece.first, seen[piece.owner])
                    seen[piece.owner] += piece.elems
                    for name, offset in piece.offsets.items():
                        part = memory[offset : offset + size_of(name, piece.elems)]
                        self.assertEqual((part[0], part[-1], offset % 64), (turn, turn, 0))
                        part[:] = bytes([turn + 1]) * len(part)
            self.assertEqual(seen, SIZES)

    def test_an_owner_is_read_and_written_whole_and_alone(self) -> None:
        self.place()
        data = os.urandom(size_of("wide", SIZES["a"]))
        self.drive.move("a", {"wide": data}, write=True)
        for owner, name, wanted in (
            ("a", "wide", data),
            ("a", "thin", bytes(SIZES["a"])),
            ("b", "wide", bytes(2)),
            ("c", "wide", b""),
        ):
            back = bytearray(b"x" * len(wanted))
            self.drive.move(owner, {name: memoryview(back)}, write=False)
            self.assertEqual(back, wanted)

    def test_only_what_is_asked_for_passes(self) -> None:
        self.place()
        owners = [{piece.owner for piece in chunk.pieces} for chunk, _ in self.drive.passing({"b"})]
        self.assertEqual(owners, [{"a", "b", "d"}])
        self.assertEqual(list(self.drive.passing({"c"})), [])

    def test_directories_take_turns_and_files_have_no_names(self) -> None:
        before = threads(1)
        self.place()
        self.drive.place({"late": (5, ("thin",))})
        self.assertEqual([len(held(path)) for path in self.dirs], [2, 1])
        self.assertEqual([os.listdir(path) for path in self.dirs], [[], []])
        self.drive.clear()
        self.assertEqual([held(path) for path in self.dirs], [[], []])
        self.assertEqual(threads(before), before)

    def test_a_full_drive_ends_the_pass_and_nothing_is_held(self) -> None:
        self.place()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (PACK, hard))  # what is written behind it is refused
        try:
            with self.assertRaises(strata.Error) as raised:
                for _ in self.drive.passing(set(SIZES)):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertEqual(raised.exception.status, "E_NOSPC")
        self.assertIn(str(self.dirs[0].parent), raised.exception.cause)

    def test_what_has_no_room_is_refused_before_it_is_reserved(self) -> None:
        room = os.statvfs(self.dirs[0])
        elems = room.f_bavail * room.f_frsize // PACK * PACK
        with self.assertRaisesRegex(strata.Error, "needs .* MiB there, and .* are free: free space") as raised:
            Drive(self.dirs, lambda name, n: n * 1024).place({"large": (elems // 1024 * 2, ("thin",))})
        self.assertEqual(
            (raised.exception.status, raised.exception.key, raised.exception.exit_code), ("E_NOSPC", "nvme_path", 4)
        )
        self.assertEqual([held(path) for path in self.dirs], [[], []])

    def test_a_place_that_is_none_is_named(self) -> None:
        (self.scratch / "file").touch()
        for path in (self.scratch / "missing", self.scratch / "file", Path("/proc")):
            with self.assertRaisesRegex(strata.Error, str(path)):
                Drive([self.dirs[0], path], size_of)


PLACED = """
import sys
from strata._drive import Drive
drive = Drive([sys.argv[1]], lambda name, n: n)
drive.place({"a": (5 << 20, ("x",))})
for chunk, memory in drive.passing({"a"}):
    memory[:] = bytes([7]) * len(memory)
"""


class Ends(InScratch):
    def test_a_process_that_is_killed_leaves_nothing(self) -> None:
        script = PLACED + "print('placed', flush=True)\nfor chunk, memory in drive.passing({'a'}):\n    input()\n"
        with subprocess.Popen(
            [sys.executable, "-c", script, str(self.scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            self.assertEqual(child.stdout.readline(), "placed\n")
            child.send_signal(signal.SIGKILL)
        self.assertEqual(child.returncode, -signal.SIGKILL)
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["book.txt"])

    @unittest.skipUnless(shutil.which("unshare"), "needs unshare")
    def test_a_small_drive_that_is_full(self) -> None:
        small = self.scratch / "small"
        small.mkdir()
        mounted = f"mount -t tmpfs -o size=4m tmpfs '{small}'"
        enter = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]
        if subprocess.run([*enter, mounted], capture_output=True, check=False).returncode != 0:
            self.skipTest("no file system can be mounted here")
        command = (
            f"{mounted} && '{sys.executable}' -c \"$1\" '{small}' || ls -A '{small}'; df --output=used '{small}' | tail -1"
        )
        done = subprocess.run([*enter, command, "sh", PLACED], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.stdout.split(), ["0"])
        self.assertIn("needs 5.0 MiB there, and 4.0 MiB are free", done.stderr)


if __name__ == "__main__":
    unittest.main()
