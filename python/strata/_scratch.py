"""Directories of a process, which the next one removes where their process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

_OWNER = "owner"


def own_directory(prefix: str, place: str) -> tuple[str, int]:
    """A new directory, after those whose process is gone are removed: a lock on a file in each says whether it lives."""
    for left in Path(place).glob(f"{prefix}*/{_OWNER}"):
        with suppress(OSError):
            _remove_dead(left)
    made = tempfile.mkdtemp(prefix=prefix, dir=place)
    new = os.path.join(made, "new")
    owner = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks, on which nothing is removed either
        fcntl.flock(owner, fcntl.LOCK_EX)
    os.rename(new, os.path.join(made, _OWNER))  # nobody finds it before it is locked
    return made, owner


def _remove_dead(left: Path) -> None:
    lock = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        told = os.fstat(lock)
        if stat.S_ISREG(told.st_mode) and told.st_uid == os.geteuid():  # in a directory that others write to
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    finally:
        os.close(lock)


def removing(of: object, made: str, owner: int) -> weakref.finalize[..., Any]:
    """Removes it when it is called, with the object, and at the end of this process, but not of a child."""
    return weakref.finalize(of, _remove, made, owner, os.getpid())


def _remove(made: str, owner: int, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(made, ignore_errors=True)
    os.close(owner)
