"""Checks of tools/trace_picture.py: test_trace_picture.py TOOL TRACE, where TRACE was written by a run of at least two steps."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

LANES = ["compute", "upload", "download", "update", "update_device", "read_state", "read_weight", "read_activation", "write", "comm"]
SVG = "{http://www.w3.org/2000/svg}"

sys.dont_write_bytecode = True
TOOL, TRACE = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("trace_picture", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def names(svg):
    return [text.text for text in xml.fromstring(svg).iter(SVG + "text") if text.get("class") == "name"]


def fills(svg):
    return [path.get("fill") for path in xml.fromstring(svg).iter(SVG + "path") if path.get("fill")]


def thread(number, name):
    return [
        {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}},
        {"ph": "M", "name": "thread_sort_index", "tid": number, "args": {"sort_index": number}},
    ]


def span(category, name, number, start, length, **args):
    return {"ph": "X", "cat": category, "name": name, "tid": number, "ts": start, "dur": length, "args": dict(args, step=1)}


BASE = thread(1, "step") + thread(2, "stall") + thread(3, "compute") + thread(4, "write") + thread(5, "write 2")
STEP = [span("step", "step 1", 1, 1000, 10000)]


class RealTrace(unittest.TestCase):
    def test_every_lane_is_there(self):
        svg = tool.draw(tool.load(TRACE))
        self.assertEqual(names(svg), ["stall"] + LANES)
        for kind in ("forward", "backward", "update", "copy", "read", "write"):
            self.assertIn(tool.COLOURS[kind], fills(svg))
        self.assertLess(len(svg), 100000)

    def test_every_op_is_of_a_kind(self):
        ops = {event["name"] for event in tool.load(TRACE) if event.get("cat") == "op"}
        self.assertEqual([op for op in ops if tool.kind_of(op) == "other"], [])

    def test_steps_are_chosen(self):
        self.assertIn("step 1:", tool.draw(tool.load(TRACE), 1))
        with self.assertRaisesRegex(tool.TraceError, "step 999 is not recorded"):
            tool.draw(tool.load(TRACE), 999)

    def test_program(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "step.svg")
            subprocess.run([sys.executable, TOOL, TRACE, "--step", "2", "--out", out, "--width", "700"], check=True)
            root = xml.parse(out).getroot()
            self.assertEqual((root.tag, root.get("width")), (SVG + "svg", "700"))
            bad = os.path.join(folder, "bad.json")
            for text in ("", "[]", "{}", '{"traceEvents":7}', '{"traceEvents":[3]}', '{"traceEvents":[{"ph":"X","cat":"step"}]}'):
                with open(bad, "w", encoding="utf-8") as file:
                    file.write(text)
                run = subprocess.run([sys.executable, TOOL, bad], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
                self.assertEqual((run.returncode, run.stdout), (1, b""))
                self.assertTrue(run.stderr.startswith(b"trace_picture: "), run.stderr)


class MadeTrace(unittest.TestCase):
    def test_threads_of_a_lane_share_a_row(self):
        events = BASE + STEP + [span("op", "write_state", 4, 2000, 2000), span("op", "write_weight", 5, 2500, 1000)]
        rows = tool.read_rows(events, 1000, 11000)
        self.assertEqual([row.name for row in rows], ["stall", "compute", "write"])
        self.assertEqual([len(row.threads) for row in rows], [0, 0, 2])
        self.assertEqual(tool.busy(rows[2]), 2000)

    def test_spans_are_cut_to_the_step(self):
        events = BASE + STEP + [
            span("op", "block_forward", 3, 0, 1500),
            span("op", "block_backward", 3, 10500, 5000),
            span("op", "end", 3, 20000, 10),
        ]
        row = tool.read_rows(events, 1000, 11000)[1]
        self.assertEqual([(s.start, s.end, s.kind) for s in row.threads[0]], [(0, 500, "forward"), (9500, 10000, "backward")])

    def test_a_stall_names_its_cause(self):
        events = BASE + STEP + [
            span("stall", "waits for write", 2, 2000, 4000, lane="write"),
            span("stall", "waits for transfers", 2, 7000, 2000),
        ]
        svg = tool.draw(events)
        self.assertIn("stalls: write 4 ms, transfers 2 ms", svg)
        self.assertIn(tool.COLOURS["write"], fills(svg))
        self.assertIn(">write</text>", svg)

    def test_no_stall(self):
        self.assertIn("stalls: none", tool.draw(BASE + STEP))

    def test_names_are_escaped(self):
        self.assertIn("a<&>'b", names(tool.draw(BASE + STEP + thread(6, "a<&>'b"))))

    def test_many_small_spans_stay_small(self):
        events = BASE + STEP + [span("op", "block_forward", 3, 1000 + i * 0.1, 0.09) for i in range(100000)]
        svg = tool.draw(events)
        self.assertLess(len(svg), 10000)
        self.assertIn(">90 %</text>", svg)

    def test_neighbours_of_two_kinds_are_not_merged(self):
        spans = [tool.Span(0, 1, "read", None), tool.Span(1, 2, "read", None), tool.Span(2, 3, "write", None)]
        self.assertEqual(tool.merge(spans, 0.5), [tool.Span(0, 2, "read", None), spans[2]])

    def test_no_step(self):
        with self.assertRaisesRegex(tool.TraceError, "no step is recorded"):
            tool.draw(BASE)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
