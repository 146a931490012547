"""The lines of JSON that an engine writes where its configuration has "strata.metrics"."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import strata
from strata import _lines, _runs
from strata.torch import Engine

from .common import HERE, python
from .test_torch_engine import CONFIG, loss_of, net

RAISES = """
import sys
from python.tests.test_torch_engine import loss_of
from python.tests.test_torch_lines import lines_engine
engine = lines_engine(sys.argv[1])
for number in range(engine.accumulation):
    engine.backward(loss_of(engine, number))
    engine.step()
if len(sys.argv) > 2:
    raise KeyError("wrong")
"""


def lines_engine(path: object, **more: Any) -> Engine:
    config = {**CONFIG, "strata": {**CONFIG.get("strata", {}), "metrics": str(path)}}
    return Engine(net(), config, machine=HERE, **more)


class Lines(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="strata-lines-"))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.path = self.scratch / "run.jsonl"

    def engine(self, **more: Any) -> Engine:
        made = lines_engine(self.path, **more)
        self.addCleanup(made.destroy)
        return made

    def step(self, engine: Engine, number: int) -> float:
        for micro in range(engine.accumulation):
            loss = loss_of(engine, number * engine.accumulation + micro)
            engine.backward(loss)
            engine.step()
        assert engine.last_step is not None
        return engine.last_step.loss

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def test_a_run_has_header_steps_and_summary(self) -> None:
        engine = self.engine()
        self.assertFalse(self.path.exists())
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.03
        losses = [self.step(engine, i) for i in range(3)]
        norm = engine.grad_norm
        self.assertEqual([line.get("step") for line in self.lines()], [None, 1, 2, 3])  # while it goes on
        engine.destroy()
        header, *steps, last = self.lines()
        self.assertEqual([line["loss"] for line in steps], losses)
        self.assertEqual((steps[-1]["lr"], steps[-1]["grad_norm"]), (0.03, norm))
        self.assertIsNone(steps[0]["tokens"])
        self.assertGreater(steps[0]["step_seconds"], 0)
        self.assertEqual(header["run"]["origins"]["strata.metrics"], "file")
        self.assertEqual((last["summary"]["status"], last["summary"]["steps"]), ("ok", 3))
        self.assertEqual(last["summary"]["last_loss"], losses[-1])
        (run,) = _runs.read_runs([self.path], None)
        self.assertEqual((run.column("loss"), run.notes), (losses, []))
        self.assertGreater(run.plan["tiers"]["device"]["needed"], 0)
        if importlib.util.find_spec("matplotlib") is not None:
            self.assertIn("Step time", strata.report(self.path, out=self.scratch / "r.html").read_text())

    def test_a_loaded_run_goes_on_behind_its_lines(self) -> None:
        engine = self.engine(save=self.scratch / "save")
        losses = [self.step(engine, 0), self.step(engine, 1)]
        engine.save(self.scratch / "saved")
        engine.saved(wait=True)
        losses.append(self.step(engine, 2))
        engine.destroy()
        again = self.engine(save=self.scratch / "save2")
        again.load(self.scratch / "saved")
        self.assertEqual(self.step(again, 2), losses[2])
        again.destroy()
        _, *steps, last = self.lines()
        self.assertEqual([(line["step"], line["loss"]) for line in steps], list(enumerate(losses, 1)))
        self.assertIn("summary", last)
        self.assertEqual(os.listdir(self.scratch).count("run.jsonl.1"), 0)

    def test_lines_of_another_run_get_another_name(self) -> None:
        self.step(self.engine(), 0)
        first = self.path.read_text()
        with self.assertLogs("strata", "WARNING") as said:
            self.step(self.engine(), 1)
        self.assertIn("run.jsonl.1", said.output[0])
        self.assertEqual((self.scratch / "run.jsonl.1").read_text()[: len(first)], first)
        self.assertEqual(len(self.lines()), 2)
        self.step(self.engine(overwrite=True), 0)
        self.assertFalse((self.scratch / "run.jsonl.2").exists())

    def test_what_cannot_be_written_is_refused_first(self) -> None:
        (self.scratch / "mine").write_text("mine\n")
        for path, said in (
            (self.scratch / "mine", "does not begin as a run does"),
            (self.scratch, "it is no file"),
            (self.scratch / "none" / "run.jsonl", "no such directory"),
        ):
            with self.assertRaisesRegex(OSError, f"strata.metrics: .*{said}.*{path.parent if 'none' in str(path) else path}"):
                lines_engine(path)
        self.assertEqual((self.scratch / "mine").read_text(), "mine\n")
        engine = self.engine()
        full = mock.patch.object(_lines.Lines, "_put", side_effect=OSError(28, "No space left on device"))
        with full, self.assertLogs("strata", "WARNING") as said_then:
            self.step(engine, 0)
        self.assertIn("No space left on device: no more lines", said_then.output[0])
        self.step(engine, 1)

    def test_the_end_of_the_process_ends_it(self) -> None:
        for words, status in (((), "ok"), (("raise",), "KeyError")):
            python(RAISES, str(self.path), *words)
            self.assertEqual(self.lines()[-1]["summary"]["status"], status)
