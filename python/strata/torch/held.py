"""The gradients of a step that is under way, held while the engine saves: its own calls end the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Within it no step is under way; afterwards the one that was is again, with the sums of its micro-batches.

    The sums are copied for that time, fp32 values for each trained element.  Where layers page the step is dropped, with a
    warning: their sums are as large as what memory has no room for.
    """
    if not engine._inside or not engine._losses or engine._pager is not None:
        engine._outside()
        yield
        return
    sums = {parameter: total.clone() for parameter, total in engine._sums.items()}
    losses, over, steps, given_up = engine._losses, engine._micro_over, engine._micro_steps, engine._given_up
    engine.drop()
    try:
        yield
    finally:
        engine._begin()
        if engine._overlap is not None:
            engine._overlap.await_all(engine)
        for _ in losses:
            engine._micro_over = True
            engine._micro()
        for parameter, total in sums.items():
            engine._sums[parameter].copy_(total)
        engine._losses, engine._micro_over, engine._micro_steps, engine._given_up = losses, over, steps, given_up
