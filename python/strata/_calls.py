"""Calls that take long, and the lives of handles."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from ._library import Library

T = TypeVar("T")
Self = TypeVar("Self", bound="Handle")

# A fault's signal is its thread's own: blocked, it would end the process without a word.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Threads that are started meanwhile never run a signal handler (include/strata/strata.h says why)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])  # by itself: Ctrl-C may be raised when the mask is set
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def blocked(work: Callable[[], T], interrupted: Callable[[int], None] | None = None) -> T:
    """Do `work` on a thread whose signals are blocked, and wait for it.

    Ctrl-C, or what else a signal's handler raises here, is raised when the work has ended; `interrupted` is told of
    each, with their number so far, and may make it end early.
    """
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is exiting: nothing more can be computed")
    library = Library.get()
    future: Future[T] = Future()
    raised: list[BaseException] = []

    thread = threading.Thread(target=_run, args=(future, work, library), name="strata")
    try:
        with _signals_blocked():
            try:
                thread.start()
            except RuntimeError:  # from Python 3.12 on none is started at the interpreter's exit, when finalisers call this
                _run(future, work, library)
    except BaseException as error:
        if future.cancel():
            raise
        raised.append(error)
    while not future.done():
        try:
            future.exception()
        except BaseException as error:
            raised.append(error)
            if interrupted is not None:
                interrupted(len(raised))
    if thread.ident is not None:
        thread.join()
    library.tell()
    try:
        if raised:
            raise raised.pop(0)
        return future.result()
    finally:
        del future  # an exception has this frame in its traceback: they would keep each other


def _run(future: Future[T], work: Callable[[], T], library: Library) -> None:
    if future.set_running_or_notify_cancel():
        try:
            with library.collecting():
                result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
    del future, work  # as above


class Stop:
    """A progress function of the library's that ends the work after Ctrl-C, and what `progress` raises."""

    def __init__(self, progress: Callable[[str, int, int], object] | None = None) -> None:
        self._progress = progress
        self._stopped = False
        self.raised: BaseException | None = None
        self.function = Library.get().callback("strata_progress_fn", self._told)

    def _told(self, _: Any, what: bytes, done: int, total: int) -> bool:
        try:
            if self._progress is not None:
                self._progress(what.decode(), done, total)
        except BaseException as error:
            self.raised = error
        return not self._stopped and self.raised is None

    def interrupted(self, times: int) -> None:
        self._stopped = True

    def call(self, work: Callable[[], T]) -> T:
        """blocked(), which ends early after Ctrl-C or where `progress` raises."""
        self._stopped = False
        try:
            return blocked(work, self.interrupted)
        except Exception:
            if self.raised is not None:
                raised, self.raised = self.raised, None
                raise raised from None
            raise


class Handle:
    """Something of the library's.  It is closed by close(), at the end of `with`, when it is dropped, or at exit."""

    def __init__(self, pointer: Any, close: str, owner: Handle | None = None) -> None:
        """`owner`: closes this, too, when it is closed."""
        self._pointer = pointer
        self.process = os.getpid()
        owns = None if owner is None else owner._finalizer
        self._finalizer: weakref.finalize[Any, Any] = weakref.finalize(
            self, Library.get().close, close, (pointer,), self.process, owns
        )

    @property
    def pointer(self) -> Any:
        """For the library's functions."""
        if not self._finalizer.alive:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Close; more than once is fine."""
        self._finalizer()

    def release(self) -> Any:
        """The pointer, for a function that takes it: nothing here closes it any more."""
        pointer = self.pointer
        self._finalizer.detach()
        return pointer

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
