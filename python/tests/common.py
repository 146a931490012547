"""What several tests need."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import strata
from strata._library import path_of_program

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(path_of_program())
HERE = strata.Machine(file=ROOT / "tests" / "machines" / "two-cores.json")  # whose rates need no measuring
TINY = {"train_batch_size": 2, "bf16": {"enabled": False}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


class InScratch(unittest.TestCase):
    """A test with a directory of its own and a text in it."""

    scratch: Path
    book: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = Path(tempfile.mkdtemp(prefix="strata-python-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        cls.book = cls.scratch / "book.txt"
        cls.book.write_text((ROOT / "docs" / "design.md").read_text()[:8000])


def flip(path: Path) -> bytes:
    """Bits change in a file of its own: another run may have the one that was there.  Returns what it had."""
    kept = path.read_bytes()
    data = bytearray(kept)
    for at in range(len(data) // 8, len(data), max(len(data) // 300, 1)):  # small planes lie in larger blocks
        data[at] ^= 1
    path.unlink()
    path.write_bytes(data)
    return kept


def open_files() -> set[str]:
    """What this process has open, without descriptors that come and go with the look itself."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {name for name in found if "/proc/" not in name}


def threads(awaited: int = 0) -> int:
    """Threads of this process.  The system counts one for a moment after it was joined: `awaited` waits for that."""
    end = time.monotonic() + 5
    while (count := len(os.listdir("/proc/self/task"))) > awaited > 0 and time.monotonic() < end:
        time.sleep(0.01)
    return count


def python(script: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def python_module(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run `python -m` of these words."""
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=timeout, check=False)
