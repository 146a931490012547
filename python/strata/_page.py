"""strata.report(): runs as one HTML file that needs nothing from elsewhere (docs/python.md)."""

from __future__ import annotations

import errno
import html
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import pictures
from ._runs import Run, TracedStep, at, is_path, read_runs, read_trace, size_text, time_text
from .files import new_file

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --soft: #f3f4f6; --ink: #1b1c1d; --weak: #5c6066; --line: #d5d8dc }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15171a; --soft: #1f2226; --ink: #e8eaed; --weak: #a4a9b0; --line: #3a3f45; --blue: #3b9ad6 } }
body { margin: 0 auto; max-width: 1360px; padding: 12px 16px 48px; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.5em; margin: .3em 0; overflow-wrap: anywhere }
h2 { font-size: 1.15em; margin: 1.8em 0 .5em; border-bottom: 1px solid var(--line) }
p { margin: .4em 0 } .weak, figcaption, th { color: var(--weak) } figcaption { font-size: .92em; margin-bottom: 4px }
.grid { margin-bottom: 20px; display: grid; gap: 20px 24px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)) }
figure { margin: 0; min-width: 0 } svg { display: block; height: auto } .narrow { display: none }
@media (max-width: 700px) { .wide { display: none } .narrow { display: block } }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .93em }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  font-weight: normal; min-width: 6.5em; overflow-wrap: anywhere }
thead th { color: var(--ink); font-weight: 600 } td { font-variant-numeric: tabular-nums }
summary { cursor: pointer; margin: .6em 0 }
"""
# What a page may not have, or what turns the order of its letters around: it is shown as a replacement.
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_ENDURES = 600  # bytes written for each byte of a drive: data sheets of client drives (docs/planning.md)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text.  Rows without any but the first are left out."""

    def line(tag: str, cells: Sequence[str]) -> str:
        first, *others = [html.escape(cell) for cell in cells]
        return f"<tr><th>{first}</th>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in others) + "</tr>"

    body = "".join(line("td", row) for row in rows if any(row[1:]))
    return f'<div class="scroll"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>' if body else ""


def _plain(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _words(words: Callable[[float], str]) -> Callable[[Any], str]:
    """Of a number that is known."""
    return lambda value: words(float(value)) if isinstance(value, (int, float)) and value == value else ""


_size, _time = _words(size_text), _words(time_text)
_Row = tuple[str, Callable[[Run], Any], Callable[[Any], str]]


def _of(path: str) -> Callable[[Run], Any]:
    """A fact of the header (run.) or the summary."""
    where, _, rest = path.partition(".")
    return lambda run: at(run.header if where == "run" else run.summary, rest)


def _last(key: str) -> Callable[[Run], Any]:
    return lambda run: run.steps[-1].get(key)


def _adapter(run: Run) -> bool:
    return bool(at(run.header, "config.strata.lora"))


def _ratio(key: str) -> Callable[[Run], float]:
    return lambda run: run.median("step_seconds") / (run.median(key) or float("nan"))


def _drive_lasts(run: Run) -> str:
    day = at(run.summary, "written.day")
    return f"{time_text(_ENDURES * 1e12 / day * 86400)}" if day else ""


_FACTS: tuple[_Row, ...] = (
    ("model", _of("run.model"), _plain),
    ("parameters", lambda run: None if _adapter(run) else run.plan.get("parameters"), _plain),
    ("parameters of the adapter, which are trained", lambda run: run.plan.get("parameters") if _adapter(run) else None, _plain),
    ("device", _of("run.engine.device"), _plain),
    ("machine", _of("run.machine.name"), _plain),
    ("strata", _of("run.version"), _plain),
    ("steps", lambda run: len(run.steps), _plain),
    ("skipped steps", lambda run: sum(bool(line.get("skipped")) for line in run.steps) or None, _plain),
    ("tokens a step", _last("tokens"), _plain),
    ("last loss", _last("loss"), _plain),
    ("best loss of an evaluation", lambda run: min((loss for _, loss in run.evals), default=None), _plain),
    ("median step", lambda run: run.median("step_seconds"), _time),
    ("tokens a second", lambda run: run.median("tokens_per_second"), _plain),
    ("model FLOPs utilisation", lambda run: 100 * run.median("mfu"), _words(lambda value: f"{value:.3g} %")),
    ("predicted step", lambda run: run.plan.get("predicted_seconds"), _time),
    ("step / bound of the schedule", _ratio("schedule_bound_seconds"), _plain),
    ("step / bound of the hardware", _ratio("hardware_bound_seconds"), _plain),
    ("bound by, as measured", _of("summary.bound_by"), _plain),
    ("peak memory of the process", _of("summary.peak_rss_bytes"), _size),
    ("at most, by plan", lambda run: run.plan.get("rss_bytes_max"), _size),
    ("written to drives a step", lambda run: run.median("bytes.write") or None, _size),
    ("by the run", lambda run: at(run.summary, "written.run") or None, _size),
    ("a day at this pace", lambda run: at(run.summary, "written.day") or None, _size),
    (f"a drive of 1 TB that endures {_ENDURES} TB lasts", _drive_lasts, _plain),
    ("ended", lambda run: run.summary.get("status") or (run.header and "killed, or still running") or None, _plain),
)


def _placed(what: str, of: str) -> Callable[[Run], Any]:
    def words(run: Run) -> str:
        have, all_ = (at(run.plan, f"placement.{key}") for key in (what, of))
        return f"{have:,} of {all_:,}" if have is not None and all_ else ""

    return words


_PLAN: tuple[_Row, ...] = (
    ("update", _of("run.plan.placement.update"), _plain),
    ("accumulation", _of("run.plan.placement.accumulation"), _plain),
    ("weights on", _of("run.plan.placement.param_tier"), _plain),
    ("optimizer state on", _of("run.plan.placement.optimizer_tier"), _plain),
    ("activation checkpoints on", _of("run.plan.placement.activation_tier"), _plain),
    ("moments", _of("run.plan.placement.moments"), _plain),
    ("pages whose weights stay on the device", _placed("resident_pages", "pages"), _plain),
    ("chunks of state kept above their tier", _placed("cached_chunks", "chunks"), _plain),
    ("blocks that keep their activations", _placed("kept_blocks", "blocks"), _plain),
    ("bound by", _of("run.plan.bound_by"), _plain),
    ("predicted to wait most for", _of("run.plan.predicted.stalled_by"), _plain),
    ("ops of a step", _of("run.plan.ops"), _plain),
)


def _rows(facts: Iterable[_Row], runs: Sequence[Run]) -> Iterator[list[str]]:
    for name, fact, words in facts:
        yield [name, *(words(fact(run)) for run in runs)]


def _moved(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Bytes of a step on each link, as planned and as they were."""
    for link in ("upload", "download", "read", "write", "comm"):
        cells = [link]
        for run in runs:
            was, planned = run.median(f"bytes.{link}"), at(run.plan, f"traffic.{link}")
            cells.append(f"{size_text(was)} ({_size(planned)})" if was or planned else "")
        yield cells


def _items(runs: Sequence[Run]) -> Iterator[list[str]]:
    """What lies on each tier, and of what is not there yet the room."""
    held = [{(item["tier"], item["name"]): item["bytes"] for item in at(run.plan, "items") or []} for run in runs]
    for tier in ("device", "host", "nvme"):
        whole = [at(run.plan, f"tiers.{tier}") or {} for run in runs]
        yield [tier, *(f"{_size(t['needed'])} of {_size(t['capacity'])}" if t.get("needed") else "" for t in whole)]
        for name in dict.fromkeys(name for of in held for t, name in of if t == tier):
            yield [f"\u2003{name}", *(_size(of.get((tier, name))) for of in held)]


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {path: tree}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{path}.{key}" if path else str(key)).items()}


def _configuration(runs: Sequence[Run]) -> str:
    """Given values first, and those in which runs differ; defaults are folded."""
    values = [_flat(run.header.get("config") or {}) for run in runs]
    origins = [run.header.get("origins") for run in runs]
    said: list[list[str]] = []
    defaults: list[list[str]] = []
    for path in sorted(set().union(*values)):
        of = [None if o is None else o.get(path, "default") for o in origins]
        have = [None if path not in v else json.dumps(v[path], ensure_ascii=False) for v in values]
        cells = [path, *("" if v is None else v if o in (None, "default") else f"{v}  ({o})" for v, o in zip(have, of))]
        (said if any(o not in (None, "default") for o in of) or len(set(have)) > 1 else defaults).append(cells)
    head = ["", *(run.name for run in runs)]
    folded = f"<details><summary>{len(defaults)} others, as by default</summary>{_table(head, defaults)}</details>"
    return (_table(head, said) or "<p>Every value is the default.</p>") + (folded if defaults else "")


def _step(run: Run | None, step: TracedStep) -> str:
    """A step twice, as a wide page and a narrow one show it."""
    title = f"{f'{run.name}: ' if run else ''}{step.title}, {time_text(step.seconds)}"
    wide, narrow = (pictures.figure_html(title, pictures.lanes(step, width), True) for width in (1000, 370))
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _notes(runs: Sequence[Run]) -> str:
    notes = [(run.name, note) for run in runs for note in run.notes]
    rates = "the rates are too low for it: more than a quarter of its steps beat the schedule's bound"
    notes += [(run.name, rates) for run in runs if run.summary.get("bound_holds") is False]
    return "".join(f'<p class="weak">{html.escape(f"{name}: {note}")}</p>' for name, note in notes)


_SECTIONS = (("Training", ("loss", "lr", "grad_norm")), ("Speed and drives", ("tokens_per_second", "bounds", "drive")))


def _page(runs: Sequence[Run], steps: Sequence[TracedStep | None], title: str) -> Iterator[str]:
    head = ["", *(run.name for run in runs)]
    yield '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
    yield _table(head, _rows(_FACTS, runs)) + _notes(runs)
    made = {name: pictures.figure_html(words, figure) for name, words, figure in pictures.charts(runs)}
    for section, names in _SECTIONS:
        shown = [made[name] for name in names if name in made]
        yield f'<h2>{section}</h2>{pictures.legend_html(head[1:])}<div class="grid">{"".join(shown)}</div>' if shown else ""
    yield "<h2>Where time and memory go</h2>"
    for number in range(1, len(runs) + 1):
        of = [made.get(pictures.name_of(name, number), "") for name in ("time", "busy", "memory")]
        yield f'<div class="grid">{"".join(of)}</div>'
    yield _table(["bytes of the median step (as planned)", *head[1:]], _moved(runs))
    yield "<h2>One step, lane by lane</h2>"
    yield "".join(_step(run if len(runs) > 1 else None, step) for run, step in zip(runs, steps) if step is not None) or (
        '<p class="weak">No trace was given: strata train --trace FILE records one, and trace=FILE shows it.</p>'
    )
    if any(run.plan for run in runs):
        yield "<h2>Memory</h2>" + _table(head, _items(runs)) + "<h2>Plan</h2>" + _table(head, _rows(_PLAN, runs))
        yield "<h2>Configuration, and where values come from</h2>" + _configuration(runs)
    yield "</body></html>\n"


def report(
    *runs: Any,
    out: str | os.PathLike[str] = "report.html",
    trace: Any = None,
    step: int | None = None,
    names: Sequence[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one HTML file about runs, side by side: training, time, drives, memory, plan, configuration.  Returns its path.

        strata.report("run.jsonl", trace="trace.json", out="report.html")

    runs   files of `strata train --metrics`, or the steps that strata.train() gives
    trace  a file of `--trace`, of which one step is shown lane by lane; of several runs a list, None where there is none
    step   which one; the last that is recorded
    names  of the runs; those of their files
    """
    read = read_runs(runs, names)
    traces = [trace] if trace is None or is_path(trace) else list(trace)
    if trace is None:
        traces *= len(read)
    if len(traces) != len(read):
        raise ValueError(f"{len(traces)} traces for {len(read)} runs: give a list, with None where there is none")
    steps = [None if one is None else read_trace(one, step) for one in traces]
    if os.path.islink(out) and not os.path.exists(out):
        raise FileNotFoundError(errno.ENOENT, "a link to what is not there: name the file itself", os.fspath(out))
    path = Path(out).resolve()
    if any(is_path(one) and Path(os.fsdecode(one)).resolve() == path for one in (*runs, *traces)):
        raise ValueError(f"{path} is read for the report: give it another name")
    with new_file(path, overwrite) as file:
        for text in _page(read, steps, title or " and ".join(run.name for run in read)):
            file.write(_CONTROL.sub("\ufffd", text))
    return path


def main(arguments: Sequence[str]) -> int:
    """python -m strata report: the exit codes of the program."""
    import argparse

    parser = argparse.ArgumentParser("strata report", description="Write one HTML file about runs (docs/python.md).")
    parser.add_argument("runs", nargs="+", metavar="RUN.jsonl", help="what strata train --metrics wrote")
    parser.add_argument("-o", "--out", default="report.html", metavar="FILE.html")
    of_trace = "a trace of a run; once for each run, in their order"
    parser.add_argument("--trace", action="append", metavar="FILE.json", help=of_trace)
    parser.add_argument("--step", type=int, metavar="N", help="which step of the traces; default: the last")
    parser.add_argument("--title", metavar="TEXT")
    parser.add_argument("--overwrite", action="store_true", help="replace a report of this name")
    args = parser.parse_args(arguments)
    traces = None if not args.trace else args.trace + [None] * (len(args.runs) - len(args.trace))
    try:
        report(*args.runs, out=args.out, trace=traces, step=args.step, title=args.title, overwrite=args.overwrite)
    except (OSError, ValueError, ImportError) as error:
        print(f"strata: error: {error}", file=sys.stderr)
        return 4 if isinstance(error, OSError) and error.errno in (errno.EIO, errno.ENOSPC) else 2
    return 0
