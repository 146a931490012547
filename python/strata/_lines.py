"""A run's lines of JSON, as "strata.metrics" asks for them: a header, a line for each step, a summary (docs/json.md)."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_log = logging.getLogger("strata")


class Lines:
    """The file of one run.  It begins with the run's first step, and grows from step to step.

    A run that has been loaded goes on behind its own lines, and what came after the checkpoint comes again.  Lines of another
    run get another name, or are replaced where `overwrite` says so.
    """

    def __init__(self, path: str, overwrite: bool) -> None:
        """Refuses what could not be written; makes nothing."""
        self.path = Path(path).absolute()
        self._overwrite = overwrite
        self._file: IO[str] | None = None
        self._on = True
        self._steps = self._skipped = 0
        self._written: list[float] = []
        self._seconds: list[float] = []
        self._last_loss: float | None = None
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "strata.metrics: no such directory", str(self.path.parent))
        if self.path.exists() and not self.path.is_file():
            raise FileExistsError(errno.EEXIST, "strata.metrics: it is no file", str(self.path))
        if self._kept(None, sys.maxsize) is None and self.path.exists() and self.path.stat().st_size > 0:
            raise FileExistsError(errno.EEXIST, "strata.metrics: it does not begin as a run does: name another", str(self.path))

    def step(self, header: Callable[[], str], line: str) -> None:
        """header: made before the first line."""
        if not self._on:
            return
        told = json.loads(line)
        try:
            if self._file is None:
                self._begin(header(), told["step"])
            self._put(line)
        except OSError as error:
            self._on = False
            _log.warning("strata.metrics: %s: no more lines are written there, the run goes on", error)
        self._steps += 1
        self._skipped += bool(told["skipped"])
        self._last_loss = told["loss"]
        self._written.append(told["bytes"]["write"])
        self._seconds.append(told["step_seconds"])

    def end(self) -> None:
        """The summary, once; the exception that has ended the process is its status."""
        if self._file is None:
            return
        if self._on:
            self._on = False
            with suppress(OSError):
                self._put(json.dumps({"summary": self._summary()}))
        with suppress(OSError):  # of what could not be written
            self._file.close()

    def _summary(self) -> dict[str, Any]:
        raised = getattr(sys, "last_exc", getattr(sys, "last_value", None))
        step, seconds = (statistics.median(values[len(values) > 1 :]) for values in (self._written, self._seconds))
        return {
            "written": {"step": step, "run": sum(self._written), "day": step / seconds * 86400 if seconds > 0 else None},
            "steps": self._steps,
            "skipped_steps": self._skipped,
            "last_loss": self._last_loss,
            "seconds": time.monotonic() - self._began,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "status": "ok" if raised is None else getattr(raised, "status", type(raised).__name__),
        }

    def _put(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line + "\n")
        self._file.flush()

    def _begin(self, header: str, step: int) -> None:
        run = json.loads(header)["run"]["id"]
        kept = self._kept(run, step) if step > 1 and run is not None else None
        if kept is not None:
            os.truncate(self.path, kept)
        elif not self._overwrite and self.path.exists():
            number = next(n for n in range(1, sys.maxsize) if not self.path.with_name(f"{self.path.name}.{n}").exists())
            aside = self.path.with_name(f"{self.path.name}.{number}")
            self.path.rename(aside)
            _log.warning("strata.metrics: the lines of another run are %s now", aside)
        self._file = open(self.path, "w" if kept is None else "a", encoding="utf-8")  # noqa: SIM115
        self._began = time.monotonic()
        if kept is None:
            self._put(header)

    def _kept(self, run: str | None, step: int) -> int | None:
        """Bytes of the file's lines before a step, of this run, or of any; None: it has none of it."""
        kept = 0
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError, RecursionError), self.path.open("rb") as file:
            for line in file:
                told = json.loads(line)
                if kept == 0 and (run or told["run"]["id"]) != told["run"]["id"]:
                    return None
                if not line.endswith(b"\n") or (kept > 0 and ("summary" in told or told["step"] >= step)):
                    break
                kept += len(line)
        return kept or None


def lines_of(settings: dict[str, Any], overwrite: bool) -> Lines | None:
    """As a configuration in force says."""
    path = settings["strata"].get("metrics")
    return Lines(path, overwrite) if path else None
