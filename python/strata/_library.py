"""libstrata.so: found, loaded at the first call, its sentences and log lines brought to Python."""

from __future__ import annotations

import atexit
import collections
import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ._abi import Abi, plain
from ._said import in_python
from .errors import Error

PACKAGE = Path(__file__).parent


def _path_of_library() -> Path:
    """Of the wheel, unless STRATA_LIBRARY names another one."""
    return Path(os.environ.get("STRATA_LIBRARY") or PACKAGE / "lib" / "libstrata.so")


def path_of_program() -> Path:
    """Of the wheel, unless STRATA_PROGRAM names another one."""
    path = Path(os.environ.get("STRATA_PROGRAM") or PACKAGE / "bin" / "strata")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install the package, or name the program in STRATA_PROGRAM")
    return path


class _Here(threading.local):
    """What a thread is doing."""

    causes: list[str] | None = None  # further causes of a failure, while it is in a call
    in_callback: bool = False  # of the library's, where the library may not be called


class Library:
    """The library and what is kept beside it.  One for a process: Library.get()."""

    _only: Library | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        path = _path_of_library()
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{error}: install the package, or name the library in STRATA_LIBRARY") from None
        self.here = _Here()
        self.abi = Abi(loaded, self._check)
        self._lines: collections.deque[tuple[int, str]] = collections.deque()
        self._to_close: collections.deque[Callable[[], None]] = collections.deque()
        self._sink = self.callback("strata_log_fn", self._log)
        self.abi.strata_log_configure(self._sink, None, self.abi.value("STRATA_LOG_INFO"))
        atexit.register(self._end)

    @classmethod
    def get(cls) -> Library:
        if cls._only is None:
            with cls._lock:
                cls._only = cls._only or cls()
        return cls._only

    def _check(self, status: int, function: Any, arguments: Any) -> None:
        if status == 0:
            return
        abi = self.abi
        sentence, remedy = plain(abi.strata_last_error()), plain(abi.strata_error_remedy())
        causes, self.here.causes = self.here.causes, None if self.here.causes is None else []
        raise Error(
            abi.name("strata_status", status),
            in_python(
                sentence.removesuffix(remedy).removesuffix(": ")
                if remedy
                else sentence or plain(abi.strata_status_text(status))
            ),
            exit_code=abi.strata_status_exit_code(status),
            key=plain(abi.strata_error_key()),
            detail=in_python("\n".join(causes or ())),
            remedy=in_python(remedy),
        )

    def callback(self, name: str, function: Callable[..., Any]) -> Any:
        """A function for the library to call.  What it drops is closed later: the library may not be called from within."""

        def guarded(*arguments: Any) -> Any:
            self.here.in_callback = True
            try:
                return function(*arguments)
            finally:
                self.here.in_callback = False

        return self.abi.callback(name)(guarded)

    def _log(self, _: Any, level: int, line: bytes) -> None:
        message = in_python(line.decode("utf-8", "replace"))
        if self.here.causes is not None and level == self.abi.value("STRATA_LOG_ERROR"):
            self.here.causes.append(message)
        else:
            self._lines.append((level, message))

    @cached_property
    def _levels(self) -> dict[int, int]:
        names = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "NOTICE": logging.INFO, "WARN": logging.WARNING}
        return {self.abi.value(f"STRATA_LOG_{name}"): level for name, level in names.items()}

    def tell(self) -> None:
        """Give the log's lines to logging, and close what callbacks have dropped."""
        while self._to_close:
            self._to_close.popleft()()
        while self._lines:
            level, message = self._lines.popleft()
            logging.getLogger("strata").log(self._levels.get(level, logging.ERROR), message)

    def close(self, function: str, arguments: tuple[Any, ...], process: int, owner: weakref.finalize[Any, Any] | None) -> None:
        """What a finaliser calls.  A child of fork() leaves what is its parent's alone."""
        if process != os.getpid() or (owner is not None and not owner.alive):
            return
        if self.here.in_callback:
            self._to_close.append(lambda: self.close(function, arguments, process, owner))
            return
        try:
            getattr(self.abi, function)(*arguments)
        except Error as error:  # nobody is left to be told
            self._lines.append((self.abi.value("STRATA_LOG_WARN"), str(error)))

    def _end(self) -> None:
        """At the interpreter's exit, after all handles: what threads may still say goes to standard error."""
        self.tell()
        nowhere = self.abi.callback("strata_log_fn")()
        self.abi.strata_log_configure(nowhere, None, self.abi.value("STRATA_LOG_INFO"))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """While this thread is in a call, further causes of a failure belong to its exception."""
        self.here.causes = []
        try:
            yield
        finally:
            for cause in self.here.causes or ():
                self._lines.append((self.abi.value("STRATA_LOG_ERROR"), cause))
            self.here.causes = None
