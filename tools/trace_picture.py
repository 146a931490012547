#!/usr/bin/env python3
"""Draws one step of a trace as SVG: a row per lane, what ran when, and what it waited for.

    strata train ... --trace trace.json
    tools/trace_picture.py trace.json --step 3 --out step.svg

Needs Python 3.7 and nothing else.  Spans closer than half a pixel are merged, so the file stays small however many ops a step
has.  docs/trace.md says how to read the picture.
"""
import argparse
import collections
import json
import sys
from xml.sax.saxutils import escape

LABEL_WIDTH = 112  # names of the rows
SHARE_WIDTH = 58  # how busy each was
TOP = 30
ROW_HEIGHT = 20  # of a row where one span runs at a time
THIN_HEIGHT = 7  # of each of several
EMPTY_HEIGHT = 12
ROW_GAP = 6
AXIS_HEIGHT = 30
LEGEND_HEIGHT = 22
MERGE = 0.5  # pixels
LETTER_WIDTH = 6.0  # of the 11 pixel font, on average

# Told apart by people who see few colours, on light and dark ground (Okabe and Ito).
COLOURS = collections.OrderedDict(
    [
        ("forward", "#56b4e9"),
        ("backward", "#0072b2"),
        ("update", "#e69f00"),
        ("copy", "#cc79a7"),
        ("read", "#009e73"),
        ("write", "#d55e00"),
        ("other", "#8a8a8a"),
    ]
)

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #5c5c5c }
.name { text-anchor: end }
.title { font-weight: 600 }
.line { stroke: #808080; stroke-opacity: .3; fill: none }
.ground { fill: #808080; fill-opacity: .1 }
.held { fill: #808080; fill-opacity: .22 }
.stall { fill: url(#hatch); stroke: #808080; stroke-width: .5 }
@media (prefers-color-scheme: dark) { text { fill: #b4b4b4 } }
"""

Span = collections.namedtuple("Span", "start end kind cause")
Row = collections.namedtuple("Row", "name threads")  # threads: lists of spans


class TraceError(Exception):
    """The file is no trace of strata, or lacks the step."""


def kind_of(name):
    """What an op is for, by its name."""
    if name.startswith(("read_", "write_")):
        return name[: name.index("_")]
    if name.startswith(("upload_", "download_", "gather_")):
        return "copy"
    if name.endswith("_forward") or name in ("head_norm", "head_stats", "head_loss"):
        return "forward"
    if name.endswith("_backward") or name.startswith("scatter_") or name in ("head_grad", "finish_grad"):
        return "backward"
    if name.startswith("update") or name in ("finish_host", "end"):
        return "update"
    return "other"


def lane_kind(lane):
    """Colour of a stall's stripe: the lane that was waited for."""
    if lane is None:
        return "other"
    first = lane.split("_")[0]
    kinds = {"upload": "copy", "download": "copy", "compute": "forward"}
    return kinds.get(lane, first if first in COLOURS else "other")


def load(path):
    """The events of a trace file."""
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise TraceError("%s: cannot be read as a trace: %s" % (path, error)) from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError("%s: cannot be read as a trace: traceEvents is no list of events" % path)
    return events


def find_step(events, number):
    """(number, start, end) of a step in microseconds; the last one if number is None."""
    steps = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "step" and event["args"]["step"] > 0:
            steps[event["args"]["step"]] = (event["ts"], event["ts"] + event["dur"])
    if not steps:
        raise TraceError("no step is recorded in this trace")
    if number is None:
        number = max(steps)
    if number not in steps:
        raise TraceError("step %d is not recorded; there are %d to %d" % (number, min(steps), max(steps)))
    return (number,) + steps[number]


def thread_rows(events):
    """{thread: (lane, index among the lane's threads)} and the lanes in order."""
    names = {}
    order = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        if event.get("ph") == "M" and event["name"] == "thread_sort_index":
            order[event["tid"]] = event["args"]["sort_index"]
    rows = {}
    lanes = []
    for thread in sorted(names, key=lambda t: order.get(t, 0)):
        lane, _, index = names[thread].partition(" ")
        rows[thread] = (lane, int(index or 1) - 1)
        if lane not in lanes:
            lanes.append(lane)
    return rows, [lane for lane in lanes if lane != "step"]


def read_rows(events, start, end):
    """A Row per lane, with the spans that overlap the step, cut to it."""
    places, lanes = thread_rows(events)
    found = {lane: collections.defaultdict(list) for lane in lanes}
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("op", "stall"):
            continue
        first, last = max(event["ts"], start), min(event["ts"] + event["dur"], end)
        if first >= last:
            continue
        lane, index = places[event["tid"]]
        cause = event["args"].get("lane") if event["cat"] == "stall" else None
        kind = lane_kind(cause) if event["cat"] == "stall" else kind_of(event["name"])
        found[lane][index].append(Span(first - start, last - start, kind, cause))
    return [Row(lane, [sorted(found[lane][i]) for i in sorted(found[lane])]) for lane in lanes]


def merge(spans, least):
    """Neighbours of one kind, less than `least` apart, as one; nothing is narrower than `least`."""
    merged = []
    for span in spans:
        span = span._replace(end=max(span.end, span.start + least))
        last = merged[-1] if merged else None
        if last and (last.kind, last.cause) == (span.kind, span.cause) and span.start - last.end < least:
            merged[-1] = last._replace(end=max(last.end, span.end))
        else:
            merged.append(span)
    return merged


def busy(row):
    """Time in which at least one span of the row runs."""
    total, until = 0, 0
    for span in sorted(span for spans in row.threads for span in spans):
        total += max(0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def tick_step(length, wanted=12):
    """1, 2 or 5 times a power of ten."""
    power = 1e-3
    while True:
        for lead in (1, 2, 5):
            if length / (lead * power) <= wanted:
                return lead * power
        power *= 10


def number_text(value):
    """At most one digit after the point, and none that says nothing."""
    return ("%.1f" % value).rstrip("0").rstrip(".")


class Picture:
    """Collects the pieces of an SVG: rectangles of one class share a path."""

    def __init__(self, width, scale):
        self.width = width
        self.scale = scale  # pixels per microsecond
        self.pieces = []
        self.paths = collections.OrderedDict()

    def x(self, micros):
        return LABEL_WIDTH + micros * self.scale

    def rect(self, fill, start, end, y, height):
        path = "M%s %sh%sv%sh-%sz" % tuple(
            number_text(v) for v in (self.x(start), y, (end - start) * self.scale, height, (end - start) * self.scale)
        )
        self.paths.setdefault(fill, []).append(path)

    def flush(self):
        """Paths so far go below what follows."""
        for fill, parts in self.paths.items():
            self.pieces.append("<path %s d='%s'/>" % (fill, "".join(parts)))
        self.paths.clear()

    def text(self, x, y, words, css=""):
        place = (number_text(x), number_text(y), css and " class='%s'" % css)
        self.pieces.append("<text x='%s' y='%s'%s>%s</text>" % (place + (escape(words),)))

    def line(self, x1, y1, x2, y2):
        ends = tuple(number_text(v) for v in (x1, y1, x2, y2))
        self.pieces.append("<path class='line' d='M%s %sL%s %s'/>" % ends)


def row_height(row):
    if not row.threads:
        return EMPTY_HEIGHT
    return max(ROW_HEIGHT, THIN_HEIGHT * len(row.threads))


def draw_row(picture, row, y, duration):
    """Spans of one lane; of several threads below each other.  A stall: hatched, with a stripe of what it waits for."""
    height = row_height(row)
    least = MERGE / picture.scale
    labels = []
    picture.rect("class='ground'", 0, duration, y, height)
    for index, spans in enumerate(row.threads):
        thin = height / len(row.threads)
        for span in merge(spans, least):
            colour = "fill='%s'" % COLOURS[span.kind]
            if row.name == "stall":
                picture.rect("class='stall'", span.start, span.end, y, height - 4)
                picture.rect(colour, span.start, span.end, y + height - 4, 4)
                labels.append(span)
            else:
                picture.rect(colour, span.start, span.end, y + index * thin, thin - (1 if len(row.threads) > 1 else 0))
    picture.flush()
    for span in labels:
        words = span.cause or "transfers"
        if (span.end - span.start) * picture.scale > LETTER_WIDTH * len(words) + 6:
            picture.text(picture.x(span.start) + 4, y + height - 8, words)
    picture.text(LABEL_WIDTH - 8, y + height / 2 + 4, row.name, "name")
    if row.threads:
        picture.text(picture.width - SHARE_WIDTH + 8, y + height / 2 + 4, "%.0f %%" % (100 * busy(row) / duration))


def draw_axis(picture, y, duration):
    """Milliseconds since the step began, with lines up through the rows."""
    step = tick_step(duration / 1e3)
    for i in range(int(duration / 1e3 / step) + 1):
        x = picture.x(i * step * 1e3)
        picture.line(x, TOP - 4, x, y)
        picture.text(x + 3, y + 11, "%g ms" % (i * step))


def draw_legend(picture, y, kinds):
    x = LABEL_WIDTH
    for kind in (kind for kind in COLOURS if kind in kinds):
        picture.pieces.append("<path fill='%s' d='M%s %sh12v10h-12z'/>" % (COLOURS[kind], number_text(x), y - 9))
        picture.text(x + 16, y, kind)
        x += 36 + LETTER_WIDTH * len(kind)
    picture.pieces.append("<path class='stall' d='M%s %sh12v10h-12z'/>" % (number_text(x), y - 9))
    picture.text(x + 16, y, "stall: nothing could run; its stripe has the colour of what was waited for")


def stall_text(rows, duration):
    """What the stalls of the step add up to, by cause."""
    sums = collections.Counter()
    for row in rows:
        if row.name == "stall":
            for span in (span for spans in row.threads for span in spans):
                sums[span.cause or "transfers"] += span.end - span.start
    parts = ["%s %.0f ms" % (cause, total / 1e3) for cause, total in sums.most_common() if total >= 0.001 * duration]
    return "stalls: " + (", ".join(parts) if parts else "none")


def draw(events, number=None, width=1100):
    """The SVG of one step, as text."""
    number, start, end = find_step(events, number)
    duration = max(end - start, 1e-3)
    rows = read_rows(events, start, end)
    picture = Picture(width, (width - LABEL_WIDTH - SHARE_WIDTH) / duration)
    bottom = TOP + sum(row_height(row) + ROW_GAP for row in rows)
    height = bottom + AXIS_HEIGHT + LEGEND_HEIGHT

    for row in rows:
        if row.name == "stall":
            for span in (span for spans in row.threads for span in merge(spans, MERGE / picture.scale)):
                picture.rect("class='held'", span.start, span.end, TOP, bottom - TOP - ROW_GAP)
    picture.flush()
    picture.text(LABEL_WIDTH, 15, "step %d: %.0f ms; %s" % (number, duration / 1e3, stall_text(rows, duration)), "title")
    picture.text(width - SHARE_WIDTH + 8, 15, "busy")
    draw_axis(picture, bottom, duration)
    y = TOP
    for row in rows:
        draw_row(picture, row, y, duration)
        y += row_height(row) + ROW_GAP
    draw_legend(picture, height - 8, {span.kind for row in rows for spans in row.threads for span in spans})
    return (
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' role='img'>\n"
        "<title>One training step, lane by lane</title>\n<style>%s</style>\n"
        "<defs><pattern id='hatch' width='5' height='5' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        "<path d='M0 0v5' stroke='#808080' stroke-width='2.4' stroke-opacity='.45'/></pattern></defs>\n%s\n</svg>\n"
        % (width, height, width, height, STYLE, "\n".join(picture.pieces))
    )


def main():
    parser = argparse.ArgumentParser(description="Draws one step of a trace (strata train --trace FILE.json) as SVG.")
    parser.add_argument("trace", help="FILE.json")
    parser.add_argument("--step", type=int, help="which one; the last that was recorded if not given")
    parser.add_argument("--out", help="FILE.svg; standard output if not given")
    parser.add_argument("--width", type=int, default=1100, help="pixels, at least 400 (%(default)s)")
    args = parser.parse_args()
    try:
        svg = draw(load(args.trace), args.step, max(args.width, 400))
    except TraceError as error:
        sys.exit("trace_picture: %s" % error)
    except (KeyError, TypeError, ValueError) as error:
        sys.exit("trace_picture: %s: an event lacks something: %r" % (args.trace, error))
    if args.out is None:
        sys.stdout.write(svg)
        return
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(svg)
    except OSError as error:
        sys.exit("trace_picture: %s" % error)


if __name__ == "__main__":
    main()
