"""What runs and traces say in their files: the lines of docs/json.md, and one step of docs/trace.md."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

NAN = float("nan")


@dataclass
class Run:
    """A run's lines.  `header` and `summary` are empty where there are none, as of the steps of strata.train()."""

    name: str
    header: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[tuple[float, float]] = field(default_factory=list)  # step, loss
    summary: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def number(self, line: Mapping[str, Any], key: str) -> float:
        """NaN where it is null or not there; key: "time_ms.stall"."""
        value = at(line, key)
        if value is None:
            return NAN
        if not isinstance(value, (int, float)):
            raise ValueError(f"{self.name}: {key} of step {line.get('step')} is {value!r}, no number")
        return float(value)

    def column(self, key: str) -> list[float]:
        return [self.number(line, key) for line in self.steps]

    def median(self, key: str) -> float:
        """Of all steps but the first, which finds nothing read ahead."""
        known = [value for value in self.column(key)[len(self.steps) > 1 :] if value == value]
        return statistics.median(known) if known else NAN

    @property
    def plan(self) -> dict[str, Any]:
        plan = self.header.get("plan")
        return plan if isinstance(plan, dict) else {}


def at(tree: Any, path: str) -> Any:
    """The value below a.b; None where there is none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def read_runs(sources: Sequence[Any], names: Sequence[str] | None) -> list[Run]:
    """Each a file of `strata train --metrics`, or the steps of a run: dicts, as strata.train() gives them."""
    if not sources:
        raise ValueError("no run is named")
    if names is not None and len(names) != len(sources):
        raise ValueError(f"{len(names)} names for {len(sources)} runs")
    own = [Path(os.fsdecode(source)).stem if is_path(source) else "run" for source in sources]
    own = [name if own.count(name) == 1 else f"{name} {own[: i + 1].count(name)}" for i, name in enumerate(own)]
    runs = [_read_run(source, name) for source, name in zip(sources, names or own)]
    shown = [run for run in runs if run.steps]
    if not shown:
        raise ValueError(f"{runs[0].name} has no step: there is nothing to show")
    shown[0].notes.extend(f"{run.name} has no step, and is left out" for run in runs if not run.steps)
    return shown


def is_path(source: Any) -> bool:
    return isinstance(source, (str, bytes, os.PathLike))


def _read_run(source: Any, name: str) -> Run:
    run = Run(name)
    if not is_path(source):
        for number, line in enumerate(source, 1):
            _take(run, line, f"{name}, step {number}")
    else:
        path = os.fsdecode(source)
        for number, line in _lines(run, path):
            if number == 1 and isinstance(line, dict) and "traceEvents" in line:
                raise ValueError(f"{path} is a trace, not a run: {_BESIDE}")
            if number == 1 and not (isinstance(line, dict) and isinstance(line.get("run"), dict)):
                raise ValueError(f"{path}, line 1: no run begins here: strata train --metrics writes such a file")
            _take(run, line, f"{path}, line {number}")
    return run


_BESIDE = "it goes with one, by trace= or --trace"
_LARGEST = 1e40  # more than any number of a run
_MAPS = "time_ms|busy_ms|stall_ms|bytes|resident|pressure"
# What a report reads of a line, by path: the first that fits counts, and other values are shown as they are or not at all.
_FIELDS = (
    (r"run\.(id|version|model|engine\.device|machine\.name)|summary\.(status|bound_by)", "a text"),
    (r"run\.plan\.(bound_by|predicted\.stalled_by|placement\.(\w+_tier|update|accumulation|moments))", "a text"),
    (r"run|summary|summary\.written|run\.(plan|engine|machine|config|origins)", "an object"),
    (r"run\.plan\.(placement|predicted|traffic|tiers|tiers\.\w+|predicted\.(busy|stall)_seconds)|" + _MAPS, "an object"),
    (r"((eval_)?(loss|bits_per_byte)|loss_mean20)", "a number"),
    (
        r"(grad_norm|lr|tokens(_total|_per_second)?|mfu|epoch|(step|hardware_bound|schedule_bound)_seconds)",
        "a number from 0 on",
    ),
    (rf"({_MAPS})\.\w+|summary\.(peak_rss_bytes|written\.\w+)", "a number from 0 on"),
    (r"run\.plan\.(parameters|ops|rss_bytes_max|predicted_seconds|placement\.\w+)", "a number from 0 on"),
    (r"run\.plan\.(tiers\.\w+|traffic|predicted\.(busy|stall)_seconds)\.\w+|run\.plan\.items\.bytes", "a number from 0 on"),
)


@lru_cache(maxsize=4096)
def _wanted(path: str) -> str:
    return next((wanted for pattern, wanted in _FIELDS if re.fullmatch(pattern, path)), "")


def _check(where: str, path: str, value: Any) -> None:
    """A value that a report reads is of its kind, or null."""
    wanted = "" if value is None else _wanted(path)
    if wanted.startswith("a number"):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
        fits = fits and (value >= 0 or wanted == "a number")
    else:
        fits = not wanted or isinstance(value, str if wanted == "a text" else Mapping)
    if not fits:
        raise ValueError(f"{where}: {path} is {_short(value)}: {wanted} is wanted")


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) < 40 else f"{text[:36]} ..."


def _checked(where: str, tree: Mapping[str, Any], path: str = "") -> None:
    for key, value in tree.items():
        below = f"{path}.{key}" if path else str(key)
        _check(where, below, value)
        if isinstance(value, Mapping) and below not in ("run.config", "run.origins"):
            _checked(where, value, below)
        if below == "run.plan.items":
            _check_items(where, value)


def _check_items(where: str, items: Any) -> None:
    if items is None:
        return
    if not isinstance(items, list):
        raise ValueError(f"{where}: run.plan.items is {_short(items)}: a list is wanted")
    for i, item in enumerate(items):
        texts = isinstance(item, Mapping) and all(isinstance(item.get(key), str) for key in ("name", "tier"))
        if not texts:
            raise ValueError(f"{where}: run.plan.items[{i}] is {_short(item)}: name, tier and bytes are wanted")
        if item.get("bytes") is None:
            raise ValueError(f"{where}: run.plan.items[{i}].bytes is missing")
        _check(where, "run.plan.items.bytes", item["bytes"])


def _lines(run: Run, path: str) -> Iterator[tuple[int, Any]]:
    with open(path, encoding="utf-8") as file:
        number = 0
        try:
            for number, text in enumerate(file, 1):
                try:
                    yield number, json.loads(text)
                except (ValueError, RecursionError) as error:  # also a number of thousands of digits
                    if number == 1 and text.startswith(('{"traceEvents"', "[")):
                        raise ValueError(f"{path} is a trace, not a run: {_BESIDE}") from None
                    if number == 1 or text.endswith("\n"):
                        raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
                    run.notes.append(f"line {number}, the last, was cut: the run was killed, or goes on")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number + 1} is no text: {error}") from None
        if number == 0:
            raise ValueError(f"{path} is empty")


def _take(run: Run, line: Any, where: str) -> None:
    """One line: a header, a step, an evaluation that was made up for, or the summary."""
    if not isinstance(line, Mapping):
        raise ValueError(
            f"{where}: an object is wanted, not {type(line).__name__}: strata.metrics writes such lines of an engine"
        )
    _checked(where, line)
    if isinstance(header := line.get("run"), dict):
        was = run.header
        if was and (was.get("id") is None or any(was.get(key) != header.get(key) for key in ("id", "version"))):
            versions = {str(was.get("version")), str(header.get("version"))}
            by = f", by strata {' and '.join(sorted(versions))}" if len(versions) > 1 else ""
            raise ValueError(f"{where}: another run begins{by}: give each run a file of its own")
        run.header, run.summary = header, {}
    elif isinstance(summary := line.get("summary"), dict):
        run.summary = summary
    elif isinstance(line.get("step"), int) and 0 <= line["step"] < 1 << 53:
        if line.get("eval_loss") is not None:
            run.evals.append((float(line["step"]), run.number(line, "eval_loss")))
        if "step_seconds" in line or "loss" in line:
            run.steps.append(dict(line))
    else:
        raise ValueError(f"{where}: neither a run, a step nor a summary")


# --- a trace ---


@dataclass
class Span:
    start: float  # seconds since the step began
    end: float
    kind: str
    row: int  # of those of the lane that run at once


@dataclass
class TracedStep:
    """One step of a trace: what ran on each lane, and what nothing could run for ("stall")."""

    title: str
    seconds: float
    lanes: dict[str, list[Span]]

    def busy(self, lane: str) -> float:
        """Seconds in which anything of the lane ran."""
        total = until = 0.0
        for span in sorted(self.lanes[lane], key=lambda span: span.start):
            total += max(0.0, span.end - max(span.start, until))
            until = max(until, span.end)
        return total


KINDS = ("forward", "backward", "update", "copy", "read", "write", "exchange")
_BACKWARD = ("head_grad", "finish_", "scatter_", "reduce_", "round_", "page_grad")


def kind_of(lane: str, name: str = "") -> str:
    """What an op is for, by its lane and its name; of a lane alone what it does."""
    if lane in ("compute", "caller"):
        return "backward" if name.endswith("_backward") or name.startswith(_BACKWARD) else "forward"
    words = {"upload": "copy", "download": "copy", "comm": "exchange", "read": "read", "write": "write", "update": "update"}
    return next((kind for word, kind in words.items() if lane.startswith(word)), "other")


def read_trace(path: Any, step: int | None = None) -> TracedStep:
    """The last step that a trace has, or step `step`."""
    path = os.fsdecode(path)
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        if isinstance(events, dict) and isinstance(events.get("run"), dict):
            raise ValueError("it is a run")
        events = events["traceEvents"] if isinstance(events, dict) else events
        names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        spans = [e for e in events if e.get("ph") == "X"]
        steps = {e["args"]["step"]: e for e in spans if e.get("cat") == "step" and e["args"]["step"] > 0}
        if steps and step is not None and step not in steps:
            raise IndexError(f"{path}: step {step} is not recorded; there are {min(steps)} to {max(steps)}")
        if not steps:
            raise IndexError(f"{path}: no step is recorded")
        return _traced(names, spans, steps[max(steps) if step is None else step])
    except IndexError as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} is no trace of strata (train --trace and plan --trace write them): {error!r}") from None


_ROWS = 1024  # ops of a lane that run at once


def _traced(names: Mapping[Any, str], spans: Iterable[Any], step: Any) -> TracedStep:
    begin, end = step["ts"], step["ts"] + step["dur"]
    if not 0 < end - begin < _LARGEST:
        raise ValueError(f"the step has a duration of {_short(step['dur'])}")
    traced = TracedStep(str(step["name"]), (end - begin) * 1e-6, {n.split()[0]: [] for n in names.values()})
    traced.lanes.pop("step", None)
    for e in spans:
        start, stop = float(max(e["ts"], begin)), float(min(e["ts"] + e["dur"], end))
        if start != start or stop != stop:
            raise ValueError(f"{_short(e['name'])} has no time")
        if e["cat"] not in ("op", "stall") or start >= stop:
            continue
        lane, _, row = names[e["tid"]].partition(" ")
        if not 1 <= int(row or 1) <= _ROWS:
            raise ValueError(f"{_short(names[e['tid']])} is no lane")
        kind = kind_of(lane, e["name"]) if e["cat"] == "op" else kind_of(e["args"].get("lane", ""))
        traced.lanes[lane].append(Span((start - begin) * 1e-6, (stop - begin) * 1e-6, kind, int(row or 1) - 1))
    return traced


# --- words ---


def size_text(value: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB" if value < 1000 else f"{value:.0f} TiB"


def time_text(seconds: float) -> str:
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    unit, name = next((u for u in units if seconds >= (1.5 if u[0] > 1 else 1) * u[0]), units[-1])
    return f"{seconds / unit:.3g} {name}" if seconds < 1000 * unit else f"{seconds / unit:,.0f} {name}"
