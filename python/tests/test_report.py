"""strata.report and strata.plot: what they read, what they refuse, and the file that they write."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import unittest
import warnings
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from python.tests.common import HERE, PROGRAM, ROOT, InScratch, python

import strata
from strata import _page, _runs

MATPLOTLIB = find_spec("matplotlib") is not None
HEADER = {"run": {"id": None, "version": "0.1.0", "config": {"strata": {"cache": 0}}, "origins": {"strata.cache": "file"}}}
STEP = {"step": 1, "loss": 2.5, "step_seconds": 0.5, "grad_norm": None, "bytes": {"write": 1024}}
TRACE = [
    {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "compute"}},
    {"ph": "M", "name": "thread_name", "tid": 2, "args": {"name": "write 2"}},
    {"ph": "X", "cat": "step", "name": "step 1", "tid": 0, "ts": 10, "dur": 100, "args": {"step": 1}},
    {"ph": "X", "cat": "op", "name": "block_forward", "tid": 1, "ts": 0, "dur": 50, "args": {}},
    {"ph": "X", "cat": "op", "name": "block_backward", "tid": 1, "ts": 60, "dur": 20, "args": {}},
    {"ph": "X", "cat": "op", "name": "write_state", "tid": 2, "ts": 100, "dur": 50, "args": {}},
]


class Page(HTMLParser):
    """The text of a page, and what it would load from elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")
        ]
        self.loads += [v for k, v in attrs if k == "style" and v and re.search(r"url\((?!.?#)", v)]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


class InRuns(InScratch):
    def write(self, *lines: object, name: str = "run.jsonl") -> Path:
        path = self.scratch / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path


class Reading(InRuns):
    def test_a_run_has_its_lines(self) -> None:
        late = {"step": 1, "eval_loss": 2.0}
        (run,) = _runs.read_runs([self.write(HEADER, STEP, late, {**STEP, "step": 2}, {"summary": {"status": "ok"}})], None)
        self.assertEqual((run.name, len(run.steps), run.evals, run.summary["status"]), ("run", 2, [(1.0, 2.0)], "ok"))
        self.assertEqual(run.column("loss"), [2.5, 2.5])
        self.assertNotEqual(run.median("grad_norm"), run.median("grad_norm"))  # NaN: null
        self.assertEqual([r.name for r in _runs.read_runs([[STEP], iter([STEP])], None)], ["run 1", "run 2"])
        self.assertEqual(_runs.read_runs([[STEP]], ["mine"])[0].name, "mine")

    def test_a_last_line_that_was_cut_is_said(self) -> None:
        path = self.write(HEADER, STEP)
        path.write_text(path.read_text() + '{"step":2,"lo')
        (run,) = _runs.read_runs([path], None)
        self.assertEqual(len(run.steps), 1)
        self.assertIn("line 3, the last, was cut", run.notes[0])

    def test_a_run_may_go_on_in_a_file(self) -> None:
        named = {"run": {**HEADER["run"], "id": "a"}}
        (run,) = _runs.read_runs(
            [self.write(named, STEP, {"summary": {"status": "cancelled"}}, named, {**STEP, "step": 2})], None
        )
        self.assertEqual((len(run.steps), run.summary), (2, {}))

    def test_a_run_without_a_step_is_left_out(self) -> None:
        (run,) = _runs.read_runs([[HEADER], [HEADER, STEP]], ["empty", "one"])
        self.assertEqual((run.name, run.notes), ("one", ["empty has no step, and is left out"]))

    def test_what_is_no_run_is_refused(self) -> None:
        newer = {"run": {**HEADER["run"], "version": "0.2.0"}}
        rows: list[tuple[tuple[object, ...], str]] = [
            ((), "is empty"),
            ((STEP,), "line 1: no run begins here"),
            (({"run": 7},), "line 1: no run begins here"),
            (("[1]",), "line 1: no run begins here"),
            (("no JSON",), "line 1 is no JSON"),
            ((HEADER,), "has no step"),
            ((HEADER, STEP, "{]"), "line 3 is no JSON"),
            ((HEADER, STEP, "[" * 100000), "line 3 is no JSON"),
            ((HEADER, "[]"), "line 2: an object is wanted, not list"),
            ((HEADER, STEP, {"steps": 2}), "line 3: neither a run, a step nor a summary"),
            ((HEADER, STEP, {"step": "two", "loss": 1}), "line 3: neither"),
            ((HEADER, STEP, HEADER), "line 3: another run begins: give each run a file of its own"),
            ((HEADER, STEP, newer), "another run begins, by strata 0.1.0 and 0.2.0"),
        ]
        for lines, said in rows:
            with self.subTest(said=said), self.assertRaisesRegex(ValueError, re.escape(said)):
                _runs.read_runs([self.write(*lines)], None)
        (self.scratch / "bytes").write_bytes(b"\xff\xfe\x00")
        for sources, names, said in (
            ([], None, "no run is named"),
            ([[STEP]], ["a", "b"], "2 names for 1 runs"),
            ([[]], None, "run has no step"),
            ([[STEP, 7]], None, "an object is wanted, not int"),
            ([self.scratch / "bytes"], None, "is no text"),
        ):
            with self.subTest(said=said), self.assertRaisesRegex(ValueError, said):
                _runs.read_runs(sources, names)
        with self.assertRaisesRegex(ValueError, "loss is .low.: a number is wanted"):
            _runs.read_runs([[{**STEP, "loss": "low"}]], None)
        with self.assertRaises(FileNotFoundError):
            _runs.read_runs([self.scratch / "missing"], None)
        with self.assertRaises(IsADirectoryError):
            _runs.read_runs([self.scratch], None)

    def test_a_wrong_field_is_named(self) -> None:
        plan = {"tiers": {"device": {"needed": 1, "capacity": 2}}, "items": [{"name": "weights", "tier": "device", "bytes": 1}]}
        rows: list[tuple[object, dict[str, object], str]] = [
            (HEADER, {**STEP, "step_seconds": "long"}, 'line 2: step_seconds is "long": a number from 0 on is wanted'),
            (HEADER, {**STEP, "loss": 10**400}, "line 2: loss is 1000"),
            (HEADER, {**STEP, "bytes": {"write": 1e300}}, "line 2: bytes.write is 1e+300: a number from 0 on is wanted"),
            (HEADER, {**STEP, "bytes": [1]}, "line 2: bytes is [1]: an object is wanted"),
            (HEADER, {**STEP, "busy_ms": {"compute": "x"}}, 'line 2: busy_ms.compute is "x": a number from 0 on is wanted'),
            (HEADER, {**STEP, "step": 10**400}, "line 2: neither"),
            ({"run": {**HEADER["run"], "model": 7}}, STEP, "line 1: run.model is 7: a text is wanted"),
            ({"run": {**HEADER["run"], "config": [1]}}, STEP, "line 1: run.config is [1]: an object is wanted"),
            ({"run": {"plan": {**plan, "tiers": {"device": 3}}}}, STEP, "line 1: run.plan.tiers.device is 3"),
            ({"run": {"plan": {**plan, "items": [{"name": "weights"}]}}}, STEP, "line 1: run.plan.items[0] is"),
            (HEADER, {**STEP, "grad_norm": float("nan")}, "line 2: grad_norm is NaN"),
        ]
        for header, step, said in rows:
            with self.subTest(said=said), self.assertRaises(ValueError) as raised:
                _runs.read_runs([self.write(header, step)], None)
            self.assertIn(said, str(raised.exception))
        with self.assertRaisesRegex(ValueError, "is a trace, not a run"):
            _runs.read_runs([self.write(json.dumps({"traceEvents": TRACE}))], None)

    def test_a_slice_of_a_table_shows_itself(self) -> None:
        some = strata.Table([{"a": 1, "b": 2}, {"a": 3}], columns=["a"])[1:]
        self.assertEqual((str(some), some.column("a")), ("a\n3", [3]))
        self.assertEqual(some[0], {"a": 3})

    def test_a_step_of_a_trace(self) -> None:
        step = _runs.read_trace(self.write(json.dumps({"traceEvents": TRACE}), name="t.json"))
        self.assertEqual((step.title, list(step.lanes)), ("step 1", ["compute", "write"]))
        self.assertAlmostEqual(step.seconds, 100e-6)
        self.assertAlmostEqual(step.busy("compute"), 60e-6)  # 40 of the first 50 lie in the step
        self.assertAlmostEqual(step.busy("write"), 10e-6)
        self.assertEqual([span.kind for span in step.lanes["compute"]], ["forward", "backward"])
        self.assertEqual(step.lanes["write"][0].row, 1)

    def test_what_is_no_trace_is_refused(self) -> None:
        no_step = [event for event in TRACE if event.get("cat") != "step"]
        for text, wanted, said in (
            ("", None, "is no trace of strata"),
            ("7", None, "is no trace of strata"),
            ("{}", None, "is no trace of strata"),
            ('{"traceEvents":7}', None, "is no trace of strata"),
            ('{"traceEvents":[7]}', None, "is no trace of strata"),
            (json.dumps(TRACE[1:]), None, "is no trace of strata"),  # a span of a row without a name
            (json.dumps(no_step), None, "no step is recorded"),
            (json.dumps(TRACE), 3, "step 3 is not recorded; there are 1 to 1"),
        ):
            with self.subTest(text=text[:20]), self.assertRaisesRegex(ValueError, said):
                _runs.read_trace(self.write(text, name="t.json"), wanted)

    def test_words(self) -> None:
        self.assertEqual([_runs.size_text(v) for v in (0, 1023, 3145728, 2e12)], ["0 B", "1023 B", "3 MiB", "1.82 TiB"])
        self.assertEqual([_runs.time_text(v) for v in (2e-6, 0.0212, 80, 1e6)], ["2 us", "21.2 ms", "80 s", "11.6 days"])

    @unittest.skipIf(MATPLOTLIB, "matplotlib is there")
    def test_matplotlib_is_asked_for(self) -> None:
        for ask in (lambda: strata.plot([STEP]), lambda: strata.report([STEP], out=self.scratch / "r.html")):
            with self.assertRaisesRegex(ImportError, "draw with matplotlib: pip install matplotlib"):
                ask()
        self.assertFalse((self.scratch / "r.html").exists())

    def test_nothing_is_imported_before_it_is_used(self) -> None:
        done = python("import strata, sys; sys.exit('matplotlib' in sys.modules or 'argparse' in sys.modules)")
        self.assertEqual(done.returncode, 0, done.stderr)


class Configured(InRuns):
    """Lines that a configuration asks for."""

    def test_train_and_the_program_write_them(self) -> None:
        path = self.scratch / "lines.jsonl"
        config = {"train_batch_size": 2, "strata": {"metrics": str(path)}}
        told = list(strata.train("nano", self.book, steps=2, config=config, seq_len=16, machine=HERE))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(lines[1:3], told)
        self.assertEqual((lines[0]["run"]["max_steps"], lines[3]["summary"]["steps"]), (2, 2))
        file = self.write(json.dumps(config), name="config.json")
        words = (
            f"train --model nano --seq-len 16 --max-steps 2 --quiet --machine {HERE.file} --data {self.book} --config {file}"
        )
        done = subprocess.run([PROGRAM, *words.split()], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("lines.jsonl: exists already", done.stderr)
        path.unlink()
        subprocess.run([PROGRAM, *words.split()], check=True, capture_output=True)
        again = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual([line["loss"] for line in again[1:3]], [line["loss"] for line in told])
        other = ["--metrics", str(self.scratch / "other.jsonl")]
        subprocess.run([PROGRAM, *words.split(), *other], check=True, capture_output=True)  # it goes before
        self.assertEqual(len((self.scratch / "other.jsonl").read_text().splitlines()), 4)


@unittest.skipUnless(MATPLOTLIB, "matplotlib is not there")
class Writing(InRuns):
    def trained(self) -> tuple[Path, Path]:
        """A run of four steps whose state is on a drive, and its trace."""
        run, trace = self.scratch / "trained.jsonl", self.scratch / "trace.json"
        if not run.exists():
            words = "train --model nano --seq-len 32 --micro-batch 2 --max-steps 4 --quiet --set strata.cache=0 --threads 1"
            offload = ["--set", "zero_optimization.offload_optimizer.device=nvme", "--nvme", str(self.scratch)]
            machine = ["--machine", str(ROOT / "tests" / "machines" / "two-cores.json"), "--data", str(self.book)]
            subprocess.run(
                [PROGRAM, *words.split(), *offload, *machine, "--metrics", str(run), "--trace", str(trace)],
                check=True,
                capture_output=True,
            )
        return run, trace

    def report(self, *runs: object, **how: object) -> Page:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return Page(strata.report(*runs, out=self.scratch / "report.html", overwrite=True, **how))

    def test_a_report_has_all_of_a_run(self) -> None:
        run, trace = self.trained()
        page = self.report(run, trace=trace)
        self.assertEqual((page.loads, page.open), ([], []))
        words = "\n".join(page.words)
        for said in (
            "Loss, ",
            "Learning rate",
            "Gradient norm",
            "Tokens a second",
            "Step / bound",
            "Written to drives",
            "Step time",
        ):
            self.assertIn(said, words)
        for said in (
            "Busy lanes",
            "What lies where",
            "step 4, ",
            "optimizer state",
            "zero_optimization.offload_optimizer.device",
        ):
            self.assertIn(said, words)
        for said in ('"nvme" (command line)', "a day at this pace", "as by default", "gated", "a drive of 1 TB"):
            self.assertIn(said, words.replace("  ", " "))
        self.assertIn("prefers-color-scheme: dark", (self.scratch / "report.html").read_text())

    def test_runs_stand_side_by_side(self) -> None:
        run, trace = self.trained()
        page = self.report(run, self.write(HEADER, STEP), trace=[trace, None], title="two <of> them & $x$")
        self.assertEqual(page.words.count("trained"), page.words.count("run"))
        self.assertIn("two <of> them & $x$", page.words)
        self.assertIn("killed, or still running", page.words)

    def test_names_from_outside_are_text(self) -> None:
        name = '<script>alert("$1_{")</script>'
        page = self.report([STEP], [STEP], names=[name, "_hidden"])
        self.assertIn(name, page.words)
        self.assertNotIn("<script>", (self.scratch / "report.html").read_text())

    def test_a_simulated_step_is_shown(self) -> None:
        path = self.scratch / "plan.json"
        words = f"plan --model nano --micro-batch 2 --seq-len 32 --machine {ROOT}/tests/machines/two-cores.json --trace {path}"
        subprocess.run([PROGRAM, *words.split()], check=True, capture_output=True)
        self.assertTrue(any(word.startswith("simulated step 1, ") for word in self.report([STEP], trace=path).words))

    def test_a_notebook_shows_a_plot(self) -> None:
        run, trace = self.trained()
        plot = strata.plot(run, [STEP, {**STEP, "step": 2}], trace=trace, step=2)
        self.assertEqual(list(plot.figures)[:2], ["loss", "lr"])
        self.assertIn("step 2: ", plot._repr_html_())
        self.assertEqual([line.get_label() for line in plot.figures["tokens_per_second"].axes[0].lines], ["trained", "run"])
        self.assertEqual(list(strata.plot(trace=trace).figures), ["lanes"])
        self.assertIn("loss", repr(plot))

    def test_broken_files_have_one_sentence(self) -> None:
        """Seeded: a failing seed is said."""
        texts = [path.read_text() for path in self.trained()]
        odd = ["1e999", "1" * 400, "-1", '"x"', "[]", "{}", "null", "true", "NaN", "[[1]]", '{"a":"b"}', "0"]
        for seed in range(10):
            chance = random.Random(seed)
            files = []
            for i, text in enumerate(texts):
                values = list(re.finditer(r'(?<=:)(-?[0-9.e+-]+|"[^"]*"|null|true|false|\{[^{}]*\}|\[[^\[\]]*\])', text))
                for _ in range(chance.randint(0, 2)):
                    at = chance.choice(values)
                    text = text[: at.start()] + chance.choice(odd) + text[at.end() :] if len(text) >= at.end() else text
                files.append(self.write(text.rstrip("\n"), name=f"broken{i}"))
            with self.subTest(seed=seed):
                try:
                    strata.report(files[0], trace=files[1], out=self.scratch / "broken.html", overwrite=True)
                except ValueError as error:
                    self.assertRegex(str(error), "broken[01]")
                    self.assertNotIn("\n", str(error))

    def test_no_raw_control_characters(self) -> None:
        page = self.report([STEP], [STEP], names=["a\0b\x1b[31m", "c\u202ed"], title="t\x9b")
        text = (self.scratch / "report.html").read_text()
        self.assertNotRegex(text, "[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]")
        self.assertIn("a\ufffdb\ufffd[31m", page.words)

    def test_a_killed_report_leaves_nothing(self) -> None:
        run, _ = self.trained()
        before = sorted(os.listdir(self.scratch))
        out = self.scratch / "killed.html"
        stops = "import os, signal, sys; from strata import _page; signal.signal(signal.SIGINT, signal.default_int_handler); "
        stops += "_page._page = lambda *_: (os.kill(os.getpid(), {}) or '' for _ in '.'); "
        runs = f"sys.argv = ['strata', 'report', {str(run)!r}, '-o', {str(out)!r}]; from strata.__main__ import main; main()"
        for number, code in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
            done = python(stops.format(int(number)) + runs)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(done.stderr, "strata: interrupted: nothing was written\n" if number == signal.SIGINT else "")
            self.assertEqual(sorted(os.listdir(self.scratch)), before)

    def test_parameters_of_an_adapter_are_called_that(self) -> None:
        header = {"run": {"config": {"strata": {"lora": {"r": 8}}}, "plan": {"parameters": 77}}}
        words = self.report([header, STEP]).words
        self.assertEqual(words[words.index("parameters of the adapter, which are trained") + 1], "77")
        self.assertNotIn("parameters", words)

    def test_small_numbers_stay_what_they_are(self) -> None:
        page = self.report([{**STEP, "lr": 0.001}, {**STEP, "step": 2, "lr": 0.0002}])
        self.assertIn("0.0004", page.words)  # a label of the rate's axis

    def test_many_steps_are_thinned(self) -> None:
        steps = [{"step": i, "loss": 1 / i, "step_seconds": 0.1} for i in range(1, 20001)]
        line = strata.plot(steps).figures["loss"].axes[0].lines[0]
        self.assertEqual(len(line.get_xdata()), 500)
        self.report(steps)
        self.assertLess(os.path.getsize(self.scratch / "report.html"), 200_000)

    def test_wrong_uses_leave_nothing(self) -> None:
        run, trace = self.trained()
        taken = self.scratch / "taken.html"
        taken.write_text("mine")
        dangling = self.scratch / "dangling.html"
        dangling.symlink_to(self.scratch / "nowhere")
        before = sorted(os.listdir(self.scratch))
        rows: list[tuple[type[Exception], str, dict[str, object]]] = [
            (FileExistsError, "exists already: overwrite replaces it", {"out": taken}),
            (FileExistsError, "is no file", {"out": self.scratch, "overwrite": True}),
            (FileExistsError, "is no file", {"out": "/dev/null", "overwrite": True}),
            (FileNotFoundError, "no such directory", {"out": self.scratch / "none" / "r.html"}),
            (FileNotFoundError, "/proc/r.html", {"out": "/proc/r.html"}),
            (FileNotFoundError, "a link to what is not there", {"out": dangling}),
            (ValueError, "is read for the report", {"out": run, "overwrite": True}),
            (ValueError, "is read for the report", {"out": trace, "trace": trace, "overwrite": True}),
            (ValueError, "2 traces for 1 runs", {"trace": [trace, None]}),
            (ValueError, "is no trace of strata", {"trace": run}),
            (ValueError, "step 99 is not recorded; there are 1 to 4", {"trace": trace, "step": 99}),
            (ValueError, "2 names for 1 runs", {"names": ["a", "b"]}),
            (FileNotFoundError, "missing.json", {"trace": self.scratch / "missing.json"}),
        ]
        for kind, said, how in rows:
            with self.subTest(said=said), self.assertRaisesRegex(kind, said):
                strata.report(run, **{"out": self.scratch / "new.html", **how})
        with self.assertRaises(ValueError):
            strata.report([{**STEP, "loss": "low"}], out=self.scratch / "new.html")
        with mock.patch.object(_page.os, "replace", side_effect=OSError(28, "full")), self.assertRaisesRegex(OSError, "full"):
            strata.report(run, out=self.scratch / "new.html")
        self.assertEqual(sorted(os.listdir(self.scratch)), before)
        self.assertEqual(taken.read_text(), "mine")

    def test_the_command(self) -> None:
        run, trace = self.trained()
        command = [sys.executable, "-m", "strata", "report", str(run)]
        out = ["-o", str(self.scratch / "by.html"), "--trace", str(trace)]
        for words, code, said in (
            ([*out], 0, ""),
            ([*out], 2, "strata: error: [Errno 17] exists already: overwrite replaces it: "),
            ([*out, "--overwrite", "--step", "2"], 0, ""),
            (["--trace", str(run), *out, "--overwrite"], 2, "strata: error: "),
            (["--what"], 2, "usage: strata report"),
        ):
            done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(said, done.stderr)
        self.assertIn("step 2, ", "".join(Page(self.scratch / "by.html").words))
