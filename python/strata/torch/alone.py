"""One thread at a time within an engine."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Turn:
    """Who is within an engine's calls: a thread and the outermost of them."""

    def __init__(self) -> None:
        self._owner: dict[str, tuple[int, str]] = {}

    def take(self, call: str) -> bool:
        """Whether it is the outermost call of this thread, which is to release(); raises where another one is inside."""
        mine = (threading.get_ident(), call)
        owner = self._owner.setdefault("owner", mine)  # in one operation
        if owner[0] != mine[0]:
            raise RuntimeError(
                f"{call}() while another thread is within {owner[1]}() of this engine: its calls come one at a time"
            )
        return owner is mine

    def release(self) -> None:
        self._owner.clear()


def alone(function: _Function) -> _Function:
    """A method that no other thread enters meanwhile, nor another one like it."""

    @functools.wraps(function)
    def call(engine: Any, *args: Any, **kwargs: Any) -> Any:
        outermost = engine._turn.take(function.__name__)
        try:
            return function(engine, *args, **kwargs)
        finally:
            if outermost:
                engine._turn.release()

    return call  # type: ignore[return-value]
