"""Tags of checkpoints that would leave their directory, or ruin it, are refused before anything is touched."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest.mock import patch

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
import strata.deepspeed
from strata.torch import Engine

CONFIG: dict[str, Any] = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
REFUSED: dict[Any, str] = {
    **dict.fromkeys(("", ".", "./"), "names that directory itself"),
    **dict.fromkeys(("..", "../x", "a/../../x", "/proc/x"), "leads out of the directory"),
    **dict.fromkeys(("a\0b", "a\n", " a", "\udc80"), "control characters, or spaces"),
    **dict.fromkeys(
        ("latest", "latest.new", "x.old", "x.new/y", "strata", "client-0.pt", "good/strata"), "a name of what strata"
    ),
    "x" * 252: "longer than 251 bytes",
    "good/inner": "good is a checkpoint",
    "notes": "notes is no directory",
}


class Tags(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.runs = self.scratch / "out" / "runs"

    def engines(self) -> list[Any]:
        """strata.torch's, and that of strata.deepspeed, which has saved a good one in its directory."""
        made = []
        for kind in (Engine, strata.deepspeed.DeepSpeedEngine):
            torch.manual_seed(1)
            config = {**CONFIG, "strata": {"save": str(self.scratch / kind.__name__)}}
            made.append(kind(torch.nn.Linear(8, 8), config))
            self.addCleanup(made[-1].destroy)
        return made

    def step(self, engine: Any) -> None:
        engine.backward((engine(torch.ones(2, 8)) ** 2).mean())
        engine.step()

    def save(self, engine: Any, tag: Any, client_state: Any = None) -> None:
        saves = engine.save_checkpoint if hasattr(engine, "save_checkpoint") else engine.save
        saves(str(self.runs), tag, client_state)
        engine.saved(wait=True)

    def load(self, engine: Any, tag: str | None = None) -> Any:
        return (
            engine.load_checkpoint(str(self.runs), tag) if hasattr(engine, "load_checkpoint") else engine.load(self.runs, tag)
        )

    def names(self) -> dict[str, int]:
        """All that lies there, and since when."""
        return {str(path): path.lstat().st_mtime_ns for path in self.scratch.rglob("*")}

    def refused(self, words: str, call: Any) -> None:
        """By an error of strata's with a remedy, which changes nothing."""
        before = self.names()
        with self.assertRaisesRegex(strata.Error, words) as raised:
            call()
        self.assertNotEqual(raised.exception.remedy, "")
        self.assertEqual(self.names(), before)

    def test_refused_tags_change_nothing(self) -> None:
        for engine in self.engines():
            self.step(engine)
            self.save(engine, "good")
            (self.runs / "notes").write_text("of others")
            for tag, words in REFUSED.items():
                with self.subTest(type(engine).__name__, tag=tag):
                    self.step(engine)
                    self.refused(words, lambda tag=tag, engine=engine: self.save(engine, tag))
            self.refused(
                "so the run's own", lambda engine=engine: engine.save(engine.settings["strata"]["save"], "step-00000009")
            )
            self.refused("names no directory", lambda engine=engine: engine.save("a\0b", "good"))
            steps = engine._layers.info.steps
            self.assertEqual(steps, 1 + len(REFUSED))
            self.save(engine, None)
            self.assertEqual((self.runs / "latest").read_text(), f"global_step{steps}")
            for tag in ("../runs/good", "a\0b", ""):
                self.refused(r"tag .*: it ", lambda tag=tag, engine=engine: self.load(engine, tag))
            self.load(engine)
            self.assertEqual(engine._layers.info.steps, steps)

    def test_a_client_state_that_cannot_be_saved(self) -> None:
        for engine in self.engines():
            self.step(engine)
            for state in ({"f": lambda: 0}, {"lock": threading.Lock()}):
                self.refused("client_state cannot be saved", lambda engine=engine, state=state: self.save(engine, "x", state))
        self.refused("client_state is int: give a dict", lambda: self.save(engine, "x", 5))

    def test_tags_in_folders(self) -> None:
        for engine in self.engines():
            for tag in (f"{type(engine).__name__}/b/", "first"):
                self.step(engine)
                self.save(engine, tag)
            self.save(engine, f"{type(engine).__name__}/b")
            self.assertEqual((self.runs / "latest").read_text(), f"{type(engine).__name__}/b")
            self.load(engine, "first")
            self.load(engine)
            self.assertEqual(engine._layers.info.steps, 2)
            with self.assertRaisesRegex(FileNotFoundError, f"there are .*{type(engine).__name__}/b"):
                self.load(engine, "none")

    def test_a_link_in_a_tags_place_gives_way(self) -> None:
        engine, _ = self.engines()
        (self.scratch / "others").mkdir()
        (self.scratch / "others" / "file").write_text("of others")
        self.runs.mkdir(parents=True)
        (self.runs / "first").symlink_to(self.scratch / "others")
        self.step(engine)
        self.save(engine, "first")
        self.assertEqual(os.listdir(self.scratch / "others"), ["file"])
        self.assertEqual(sorted(os.listdir(self.runs)), ["first", "latest"])
        self.load(engine)

    def test_a_directory_that_an_earlier_version_has_ruined(self) -> None:
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        for engine in self.engines():
            self.step(engine)
            self.save(engine, "good")
            (self.runs / "latest").unlink()
            (self.runs / "good").rename(self.runs / "latest")
            words = "latest is a directory, where a file names the newest checkpoint: give it another name"
            self.refused(words, lambda engine=engine: self.load(engine))
            self.refused(words, lambda engine=engine: self.save(engine, "next"))
            self.refused(words, lambda: strata.export(self.runs, self.scratch / "exported"))
            (self.runs / "latest").rename(self.runs / type(engine).__name__)
            self.load(engine, type(engine).__name__)
            self.save(engine, "next")

    def test_two_ranks_refuse_together(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
             "python.tests.test_torch_tags", str(self.scratch)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        told = [json.loads((self.scratch / f"{rank}.json").read_text()) for rank in range(2)]
        for refused, expected in zip(told, OF_RANKS):
            self.assertEqual(len(refused), len(expected), refused)
            for mine, words in zip(refused, expected):
                self.assertIn(words, mine)
        self.assertEqual(sorted(os.listdir(self.runs)), ["good", "latest", "notes"])


# What each of two ranks says of the same tags, and of a full disk.
OF_RANKS = (
    ("names that directory", "latest is a name", "is no directory", "rank 1 has failed", "the disk is full"),
    ("names that directory", "latest is a name", "rank 0 has failed", "cannot be saved", "rank 0 has failed"),
)


def main_of_a_rank(scratch: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank, runs = torch.distributed.get_rank(), scratch / "out" / "runs"
    refusals: list[str] = []
    engine = strata.deepspeed.DeepSpeedEngine(torch.nn.Linear(8, 8), {**CONFIG, "strata": {"save": str(scratch / "own")}})
    for tag, state in (("good", None), (".", None), ("latest", None), ("notes", None), ("last", rank and {"f": lambda: 0})):
        engine.backward((engine(torch.ones(1, 8)) ** 2).mean())
        engine.step()
        try:
            engine.save_checkpoint(str(runs), tag, state or None)
        except (strata.Error, RuntimeError) as error:
            refusals.append(str(error))
        if rank == 0:
            (runs / "notes").write_text("of others")
    with patch("strata.torch.saves._link", side_effect=OSError(errno.ENOSPC, "the disk is full")):  # rank 0 links
        try:
            engine.save_checkpoint(str(runs), "full")
        except (OSError, RuntimeError) as error:
            refusals.append(str(error))
    assert engine.load_checkpoint(str(runs))[0] == str(runs / "good")
    (scratch / f"{rank}.json").write_text(json.dumps(refusals))
    engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main_of_a_rank(Path(sys.argv[1]))
