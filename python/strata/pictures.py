"""Pictures of runs: strata.plot() in a notebook, strata.report() as one HTML file (docs/python.md).  Needs matplotlib."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, cycle
from typing import Any, NamedTuple

from ._runs import KINDS, NAN, Run, Span, TracedStep, at, kind_of, read_runs, read_trace, size_text, time_text

# Colours that are told apart by people who see few of them (Okabe and Ito).  Those of text and lines become the reader's own.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PAINTS = dict(zip(KINDS, ("#56b4e9", "#0072b2", "#e69f00", "#cc79a7", "#009e73", "#d55e00", "#a6761d"))) | {"other": "#8a8a8a"}
_INK, _LINE = "#1b1c1d", "#a0a1a2"
_POINTS = 500  # of a curve, at most: more are averaged


def _figure(width: float, height: float) -> Any:
    """Of so many pixels, without pyplot: nothing is kept, and no window opens."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def _style() -> Any:
    """Within it figures are made and written."""
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ImportError("strata.report and strata.plot draw with matplotlib: pip install matplotlib") from error

    keys = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[str, Any] = dict.fromkeys(keys, _LINE) | {"text.color": _INK, "axes.labelcolor": _INK, "grid.color": _LINE}
    style |= {"xtick.labelcolor": _INK, "ytick.labelcolor": _INK, "font.size": 11, "grid.alpha": 0.35, "grid.linewidth": 0.5}
    style |= {"axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False}
    style |= {"svg.fonttype": "none", "svg.hashsalt": "strata", "text.parse_math": False, "axes.unicode_minus": False}
    return rc_context(style)  # type: ignore[arg-type, unused-ignore]


def _own(colour: str) -> str:
    """The page's colour in the place of ours."""
    faint = "color-mix(in srgb, currentColor 55%, transparent)"
    return {_INK: "currentColor", _LINE: faint, COLOURS[0]: f"var(--blue, {COLOURS[0]})"}.get(colour, colour)


def _svg(figure: Any, label: str) -> str:
    """The figure for a page: its ink is the page's, and it is as wide as there is room."""
    file = io.StringIO()
    with _style():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->| id=\"[A-Za-z0-9.]+_\d+\"", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r" d=\"[^\"]*", lambda path: re.sub(r"(\.\d\d)\d+|\n", r"\1", path[0]), text)  # a hundredth of a pixel
    for ours in (_INK, _LINE, COLOURS[0]):
        text = text.replace(ours, _own(ours))
    width, height = (float(n) for n in re.findall(r"(?:width|height)=\"([\d.]+)pt\"", text[:500])[:2])
    head = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width:g} {height:g}"'
    head += f' style="width:100%;max-width:{1.6 * width:.0f}px" xmlns="http://www.w3.org/2000/svg"'
    return head + text[text.index(" version=") :]


def _legend(figure: Any, paints: Sequence[tuple[str, str]], columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=paint, label=name) for name, paint in paints]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


# --- what is drawn ---


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    width = max(1, -(-len(x) // _POINTS))
    groups = [range(i, min(i + width, len(x))) for i in range(0, len(x), width)]
    known = [[y[i] for i in group if y[i] == y[i]] for group in groups]
    return [x[group[0]] for group in groups], [sum(k) / len(k) if k else NAN for k in known]


def _curves(axes: Any, runs: Sequence[Run], *keys: str, value: Callable[[float, Run, int], float] | None = None) -> bool:
    """A curve for each run; the second key is a smoother one in front of it."""
    any_known = False
    for number, run in enumerate(runs):
        x = run.column("step")
        for key in keys:
            y = [v if value is None else value(v, run, i) for i, v in enumerate(run.column(key))]
            any_known = any_known or any(v == v for v in y)
            weak = len(keys) > 1 and key == keys[0]
            marker = "." if len(x) < 30 and not weak else ""
            how = {"linewidth": 1, "alpha": 0.4} if weak else {"linewidth": 1.6, "label": run.name}
            axes.plot(*_thinned(x, y), color=COLOURS[number % len(COLOURS)], marker=marker, **how)
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return any_known


def _loss(axes: Any, runs: Sequence[Run]) -> bool:
    known = _curves(axes, runs, "loss", "loss_mean20")
    for number, run in enumerate(runs):
        if run.evals:
            x, y = zip(*run.evals)
            axes.plot(x, y, "D", color=COLOURS[number % len(COLOURS)], markersize=5, markeredgecolor=_INK, markeredgewidth=0.6)
    return known


def _norm(axes: Any, runs: Sequence[Run]) -> bool:
    known = _curves(axes, runs, "grad_norm")
    values = [v for run in runs for v in run.column("grad_norm") if v > 0]
    if values and max(values) > 30 * min(values):
        axes.set_yscale("log")
    return known


def _bounds(axes: Any, runs: Sequence[Run]) -> bool:
    def over(bound: str) -> Callable[[float, Run, int], float]:
        return lambda seconds, run, i: seconds / (run.number(run.steps[i], bound) or NAN)

    known = _curves(axes, runs, "step_seconds", value=over("schedule_bound_seconds"))
    lines = len(axes.lines)
    known = _curves(axes, runs, "step_seconds", value=over("hardware_bound_seconds")) or known
    for line in axes.lines[lines:]:
        line.set(linestyle=":", marker="")
    axes.axhline(1, color=_INK, linewidth=0.8)
    values = sorted(v for line in axes.lines for v in line.get_ydata() if v == v)
    axes.set_ylim(0, 1.25 * values[int(0.95 * (len(values) - 1))])
    return known


def _speed(axes: Any, runs: Sequence[Run]) -> bool:
    known = _curves(axes, runs, "tokens_per_second")
    axes.set_ylim(bottom=0)
    return known


def _drive(axes: Any, runs: Sequence[Run]) -> bool:
    sums = [
        (dashes, number, list(accumulate(v if v == v else 0.0 for v in run.column(key))))
        for key, dashes in (("bytes.write", "-"), ("bytes.read", ":"))
        for number, run in enumerate(runs)
    ]
    most = max(moved[-1] for *_, moved in sums)
    unit, name = next((u, n) for u, n in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (1, "bytes")) if most >= u or u == 1)
    for dashes, number, moved in sums:
        x, y = _thinned(runs[number].column("step"), moved)
        axes.plot(x, [v / unit for v in y], dashes, color=COLOURS[number % len(COLOURS)], label=runs[number].name)
    axes.set(xlabel="step", ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return most > 0


def _lane_names(run: Run, of: str) -> list[str]:
    return list(at(run.steps[-1], of) or {})


def _time(axes: Any, runs: Sequence[Run]) -> bool:
    """Forward, backward and other, then what nothing could run for: they add up to the step."""
    run = runs[0]
    parts = [(part, f"time_ms.{part}", PAINTS[part]) for part in ("forward", "backward", "other")]
    stalls = [lane for lane in _lane_names(run, "stall_ms") if any(v > 0 for v in run.column(f"stall_ms.{lane}"))]
    parts += [(f"waits for {lane}", f"stall_ms.{lane}", PAINTS[kind_of(lane)]) for lane in stalls]
    columns = [[v if v == v else 0.0 for v in run.column(key)] for _, key, _ in parts]
    if not any(map(any, columns)):
        return False
    thin = [_thinned(run.column("step"), column) for column in columns]
    stacks = axes.stackplot(thin[0][0], [y for _, y in thin], colors=[paint for *_, paint in parts], linewidth=0)
    for stack, (name, *_) in zip(stacks, parts):
        if name.startswith("waits"):
            stack.set(hatch="////", edgecolor=_LINE, linewidth=0)
    whole = sorted(map(sum, zip(*columns)))
    axes.set_ylim(0, 1.15 * whole[int(0.97 * (len(whole) - 1))])
    axes.set(xlabel="step", ylabel="ms")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0)
    _legend(axes.figure, [(name, paint) for name, _, paint in parts], 2)
    return True


def _busy(axes: Any, runs: Sequence[Run]) -> bool:
    """How much of a step each lane is busy, beside what the plan predicts."""
    run, step = runs[0], runs[0].median("step_seconds") or NAN
    predicted, whole = at(run.plan, "predicted.busy_seconds") or {}, at(run.plan, "predicted_seconds")
    lanes = [lane for lane in _lane_names(run, "busy_ms") if run.median(f"busy_ms.{lane}") > 0 or predicted.get(lane)]
    for y, lane in enumerate(lanes):
        axes.barh(y, run.median(f"busy_ms.{lane}") / 10 / step, height=0.6, color=PAINTS[kind_of(lane)])
        if predicted.get(lane) and whole:
            axes.plot(100 * predicted[lane] / whole, y, "|", color=_INK, markersize=13, markeredgewidth=2)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set(xlabel="% of the step", xlim=(0, 100))
    axes.grid(visible=False, axis="y")
    return bool(lanes)


# With what an item's name begins, what it is in the legend, and the kind whose colour it has.
_ITEMS = [("weight", "weights", "forward"), ("gradient", "gradients", "backward")]
_ITEMS += [("host accumulators", "gradients", "backward"), ("optimizer state", "optimizer state", "update")]
_ITEMS += [("state", "optimizer state", "update"), ("second versions", "optimizer state", "update")]
_ITEMS += [("activation", "activations", "read")]
_ITEMS += [("checkpoint", "checkpoints", "copy"), ("", "other", "other")]


def _memory(axes: Any, runs: Sequence[Run]) -> bool:
    """What each tier has, by what it is for; slots, which things pass through, are paler."""
    tiers = {name: tier for name, tier in (at(runs[0].plan, "tiers") or {}).items() if tier["capacity"] or tier["needed"]}
    shown: dict[str, str] = {}
    for y, (name, tier) in enumerate(tiers.items()):
        whole, left = tier["needed"] or 1, 0.0
        for item in (i for i in at(runs[0].plan, "items") or [] if i["tier"] == name):
            word, kind = next((word, kind) for begin, word, kind in _ITEMS if item["name"].startswith(begin))
            shown[word] = PAINTS[kind]
            part, pale = item["bytes"] / whole * 100, 0.5 if "slots" in item["name"] else 1
            axes.barh(y, part, left=left, height=0.5, color=PAINTS[kind], alpha=pale)
            left += part
        axes.barh(y, 100, height=0.5, facecolor="none", edgecolor=_LINE)
        has = f"{name}: {size_text(tier['needed'])} of {size_text(tier['capacity'])}"
        axes.text(0, y - 0.31, has, va="bottom", color=_INK)
    axes.set_yticks([])
    axes.set(xlim=(0, 100), ylim=(len(tiers) - 0.4, -0.8), xlabel="% of what the plan puts there")
    axes.grid(visible=False)
    axes.spines.left.set_visible(False)
    _legend(axes.figure, list(shown.items()), 3)
    return bool(tiers)


def _merged(spans: Sequence[Span], least: float) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """Begin and length by row and kind; neighbours closer than `least` are one, and nothing is shorter."""
    merged: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        into = merged.setdefault((span.row, span.kind), [])
        if into and span.start - sum(into[-1]) < least:
            into[-1] = (into[-1][0], max(span.end, sum(into[-1])) - into[-1][0])
        else:
            into.append((span.start, max(span.end - span.start, least)))
    return merged


def _bars(axes: Any, pieces: Sequence[tuple[float, float]], top: float, height: float, **how: Any) -> None:
    """Bars of one look as one path, so that many are small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [
        (x, y) for x, w in pieces for x, y in ((x, top), (x + w, top), (x + w, top + height), (x, top + height), (x, top))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(pieces)
    axes.add_patch(PathPatch(Path(corners, codes), linewidth=0, **how))


def lanes(step: TracedStep, width: float) -> Any:
    """A row for each lane over time; what nothing could run for is hatched, and falls through all rows."""
    used = {name: spans for name, spans in step.lanes.items() if spans or name == "compute"}
    deep = {name: 1 + max((span.row for span in spans), default=0) for name, spans in used.items()}
    heights = {name: max(1.0, 0.45 * rows) for name, rows in deep.items()}
    bottom, unit = sum(heights.values()), 1 if step.seconds >= 1 else 1000
    with _style():
        figure = _figure(width, 52 + 24 * bottom + 20 * -(-len(PAINTS) * 85 // int(width)))
        axes, top, middles = figure.add_subplot(), 0.0, []
        for name, spans in used.items():
            bar = heights[name] * 0.8 / deep[name]
            for (row, kind), pieces in _merged(spans, 0.6 * step.seconds / width).items():
                times = [(start * unit, length * unit) for start, length in pieces]
                if name == "stall":
                    _bars(axes, times, -0.2, bottom + 0.2, facecolor=_LINE, alpha=0.25, zorder=0)
                hatch = {"hatch": "////", "edgecolor": _LINE} if name == "stall" else {}
                _bars(axes, times, top + row * bar, bar, facecolor=PAINTS[kind], **hatch)
            middles.append(top + heights[name] * 0.4)
            top += heights[name]
        axes.set(xlim=(0, step.seconds * unit), ylim=(bottom, -0.2), xlabel="s" if unit == 1 else "ms")
        axes.set_yticks(middles, used)
        right = axes.secondary_yaxis("right")
        right.set_yticks(middles, [f"{100 * step.busy(name) / step.seconds:.0f} %" for name in used])
        right.spines.right.set_visible(False)
        for axis in (axes, right):
            axis.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        kinds = [kind for kind in PAINTS if any(span.kind == kind for spans in used.values() for span in spans)]
        _legend(figure, [(kind, PAINTS[kind]) for kind in kinds], max(2, int(width // 95)))
    return figure


class _Chart(NamedTuple):
    name: str
    title: str
    draw: Callable[[Any, Sequence[Run]], bool]
    height: float = 200


_OVER_STEPS = (
    _Chart("loss", "Loss, its mean of 20, and evaluations", _loss),
    _Chart("lr", "Learning rate", lambda axes, runs: _curves(axes, runs, "lr")),
    _Chart("grad_norm", "Gradient norm before clipping", _norm),
    _Chart("tokens_per_second", "Tokens a second", _speed),
    _Chart("bounds", "Step / bound; dotted: bound of the hardware", _bounds),
    _Chart("drive", "Written to drives; dotted: read", _drive),
)
_OF_A_RUN = (
    _Chart("time", "Step time, and what it waited for", _time, 260),
    _Chart("busy", "Busy lanes; |: as predicted", _busy, 260),
    _Chart("memory", "What lies where", _memory, 230),
)


class Plot:
    """Figures of runs.  A notebook shows them; `figures` has them by name, for savefig()."""

    def __init__(self, titles: Mapping[str, str], figures: Mapping[str, Any], names: Sequence[str]) -> None:
        self.figures = dict(figures)
        self._titles = dict(titles)
        self._names = list(names)

    def __repr__(self) -> str:
        return f"strata.Plot of {', '.join(self._names)}: {', '.join(self.figures)}"

    def _repr_html_(self) -> str:
        cells = "".join(figure_html(self._titles[name], figure, name == "lanes") for name, figure in self.figures.items())
        grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:1em"
        return f'{legend_html(self._names)}<div style="{grid}">{cells}</div>'


def figure_html(title: str, figure: Any, wide: bool = False) -> str:
    style = f"margin:0{';grid-column:1/-1' if wide else ''}"
    return f'<figure style="{style}"><figcaption>{html.escape(title)}</figcaption>{_svg(figure, title)}</figure>'


def legend_html(names: Sequence[str]) -> str:
    """Which run has which colour; nothing of a single one."""
    spot = '<span style="color:{}">&#9632;</span> {}'
    spots = [spot.format(_own(paint), html.escape(name)) for name, paint in zip(names, cycle(COLOURS))]
    return f"<p>{' &nbsp; '.join(spots)}</p>" if len(names) > 1 else ""


def charts(runs: Sequence[Run]) -> Iterator[tuple[str, str, Any]]:
    """Name, title and figure of each chart that has something to show."""
    with _style():
        for chart in (*_OVER_STEPS, *_OF_A_RUN):
            several = chart in _OVER_STEPS
            for number, some in enumerate([runs] if several else [[run] for run in runs]):
                figure = _figure(380, chart.height)
                if chart.draw(figure.add_subplot(), some):
                    of = "" if several or len(runs) == 1 else f" ({runs[number].name})"
                    yield name_of(chart.name, number + 1), chart.title + of, figure


def name_of(chart: str, number: int) -> str:
    """Of the chart of the first run, the second, ..."""
    return chart if number == 1 else f"{chart} {number}"


def plot(*runs: Any, trace: Any = None, step: int | None = None, names: Sequence[str] | None = None) -> Plot:
    """Figures of runs, for a notebook: each a file of `strata train --metrics`, or the steps that strata.train() gives.

        strata.plot(strata.Table(strata.train(...)))
        strata.plot("a.jsonl", "b.jsonl").figures["loss"].savefig("loss.png")

    trace, step  also one step of `--trace FILE`, lane by lane; the last that is recorded, or this one
    """
    read = read_runs(runs, names) if runs or trace is None else []
    made = list(charts(read)) if read else []
    if trace is not None:
        traced = read_trace(trace, step)
        made.append(("lanes", f"{traced.title}: {time_text(traced.seconds)}, lane by lane", lanes(traced, 760)))
    return Plot({n: title for n, title, _ in made}, {n: figure for n, _, figure in made}, [run.name for run in read])
