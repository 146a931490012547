"""strata.export and its command of what engines have saved: shards, odd places, damaged files, ends by force."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
from strata.__main__ import _export
from strata.files import is_engines
from strata.torch import Engine
from strata.torch.exported import bytes_of

from .common import flip, python
from .test_torch_engine import CONFIG, SINGLE, equal, loss_of, net, train

OF_HF = importlib.util.find_spec("safetensors") is not None and importlib.util.find_spec("transformers") is not None


def command(*words: object) -> tuple[int, str, str]:
    """Exit code and what was said, of `python -m strata export`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _export([str(word) for word in words])
    return code, out.getvalue().strip(), err.getvalue().strip()


class Exports(unittest.TestCase):
    scratch: Path
    runs: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = Path(tempfile.mkdtemp(prefix="strata-exports-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        cls.runs = cls.scratch / "runs"
        engine = Engine(net(), SINGLE, save=cls.scratch / "own")
        train(engine, range(2))
        engine.save(cls.runs, "first")
        engine.saved(wait=True)
        cls.weights = {name: value.clone() for name, value in engine.module.state_dict().items()}
        engine.destroy()

    def new(self, name: str) -> Path:
        made = self.scratch / name
        shutil.rmtree(made, ignore_errors=True)
        return made

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory)) if directory.exists() else []

    @unittest.skipUnless(OF_HF, "safetensors or transformers is not installed")
    def test_shards_are_as_transformers_cuts_them(self) -> None:
        from huggingface_hub import split_torch_state_dict_into_shards
        from safetensors.torch import load_file

        out = self.new("shards")
        for size in ("20KB", 30000, "1KB"):
            strata.export(self.runs, out, max_shard_size=size, overwrite=True)
            index = json.loads((out / "model.safetensors.index.json").read_text())
            wanted = split_torch_state_dict_into_shards(self.weights, max_shard_size=size)
            self.assertEqual(index["weight_map"], wanted.tensor_to_filename)
            self.assertEqual(index["metadata"]["total_size"], wanted.metadata["total_size"])
            self.assertEqual(self.names(out), sorted([*wanted.filename_to_tensors, "model.safetensors.index.json"]))
            there = {name: value for file in wanted.filename_to_tensors for name, value in load_file(out / file).items()}
            self.assertEqual(there.keys(), self.weights.keys())
            for name, value in self.weights.items():
                self.assertTrue(torch.equal(there[name], value), name)
        with self.assertRaisesRegex(FileExistsError, "overwrite"):
            strata.export(self.runs, out)
        strata.export(self.runs, out, overwrite=True)
        self.assertEqual(self.names(out), ["model.safetensors"])
        strata.export(self.runs, out, max_shard_size="20KB", dtype="bf16", overwrite=True)
        self.assertEqual(len(self.names(out)), 3)
        self.assertEqual([bytes_of(size) for size in (None, 7, "7", "1.5 kb", "2GB")], [None, 7, 7, 1500, 2 * 10**9])
        for size in ("five", 0, "-3", "3XB", "nan"):
            with self.assertRaisesRegex(ValueError, "max_shard_size is "):
                strata.export(self.runs, out, max_shard_size=size, overwrite=True)

    @unittest.skipUnless(OF_HF, "safetensors or transformers is not installed")
    def test_transformers_loads_shards(self) -> None:
        import transformers

        sizes = {
            "vocab_size": 97,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        engine = Engine(module, {**SINGLE, "bf16": {"enabled": True}}, save=self.scratch / "gpt2")
        ids = torch.arange(8)[None]
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        engine.save(self.scratch / "gpt2-runs")
        engine.saved(wait=True)
        out = self.new("gpt2-out")
        strata.export(self.scratch / "gpt2-runs", out, max_shard_size="40KB")
        module.config.save_pretrained(out)
        again = transformers.GPT2LMHeadModel.from_pretrained(out, dtype=torch.bfloat16)
        self.assertIn("model.safetensors.index.json", self.names(out))
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(again.state_dict()[name], value), name)
        engine.destroy()

    def test_damage_is_one_sentence(self) -> None:
        cases: list[tuple[int, str, Callable[[Path], object]]] = [
            (4, "strata/manifest.json is damaged", lambda c: os.truncate(c / "first/strata/manifest.json", 100)),
            (4, "strata/manifest.json", lambda c: (c / "first/strata/manifest.json").write_text("[]")),
            (4, "strata/manifest.json", lambda c: flip(c / "first/strata/manifest.json")),
            (4, "strata/manifest.json is damaged", lambda c: (c / "first/strata/manifest.json").write_text("[" * 10**5)),
            (4, "strata/manifest.json is missing", lambda c: (c / "first/strata/manifest.json").unlink()),
            (4, "strata/manifest.json is missing", lambda c: shutil.rmtree(c / "first/strata")),
            (4, "strata/set.0", lambda c: flip(c / "first/strata/set.0")),
            (4, "strata/set.0", lambda c: (c / "first/strata/set.0").unlink()),
            (4, "strata/extents.bin", lambda c: os.truncate(c / "first/strata/extents.bin", 40)),
            (4, "client-0.pt is damaged: its checksum differs", lambda c: os.truncate(c / "first/client-0.pt", 100)),
            (4, "client-0.pt is missing", lambda c: (c / "first/client-0.pt").unlink()),
            (4, "client-0.json is damaged", lambda c: os.truncate(c / "first/client-0.json", 9)),
            (4, "client-0.json is missing", lambda c: (c / "first/client-0.json").unlink()),
            (4, "latest is damaged ('utf-8' codec", lambda c: (c / "latest").write_bytes(b"\xff\xfe")),
            (4, "latest is damaged (it names no checkpoint): name one", lambda c: (c / "latest").write_text("")),
            (4, "latest is damaged (it names no checkpoint): name one", lambda c: (c / "latest").write_text("a" * 999)),
            (2, "has no checkpoint none: there are first", lambda c: (c / "latest").write_text("none")),
        ]
        for code, words, change in cases:
            with self.subTest(words):
                copy, out = self.new("copy"), self.new("out")
                shutil.copytree(self.runs, copy)
                change(copy)
                told = command(copy, "--out", out)
                self.assertEqual(told[:2], (code, ""), told[2])
                self.assertEqual(told[2].count("\n"), 0, told[2])
                self.assertIn(words, told[2])
                self.assertNotIn("trusted", told[2])
                self.assertEqual(self.names(out), [])

    def test_places_that_take_no_export(self) -> None:
        made: list[tuple[str, Callable[[Path], object]]] = [
            ("dangling", lambda path: path.symlink_to(self.scratch / "nowhere")),
            ("fifo", os.mkfifo),
            ("directory", lambda path: path.mkdir()),
        ]
        for name, make in made:
            with self.subTest(name):
                out = self.new(f"odd-{name}")
                out.mkdir()
                make(out / "model.safetensors")
                for more in ([], ["--overwrite"], ["--overwrite", "--max-shard-size", "9KB"]):
                    code, _, told = command(self.runs, "--out", out, *more)
                    self.assertEqual(code, 2)
                    self.assertIn("model.safetensors", told)
                    self.assertEqual(self.names(out), ["model.safetensors"])
                self.assertFalse((self.scratch / "nowhere").exists())
                if name != "directory":
                    make(self.scratch / name)
                    code, _, told = command(self.runs, "--out", self.scratch / name)
                    self.assertEqual((code, "no directory" in told), (2, True))

    def test_a_full_disk_leaves_nothing(self) -> None:
        script = (
            "import resource, sys; from strata.__main__ import _export;"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); sys.exit(_export(sys.argv[1:]))"
        )
        out = self.new("full")
        out.mkdir()
        (out / "model.safetensors").write_text("kept")
        for more in ([], ["--max-shard-size", "20KB"]):
            done = python(script, str(self.runs), "--out", str(out), "--overwrite", *more)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertRegex(done.stderr, r"^strata: error: .*safetensors: File too large\n$")
            self.assertEqual(self.names(out), ["model.safetensors"])
            self.assertEqual((out / "model.safetensors").read_text(), "kept")

    def test_a_killed_export_leaves_what_was_there(self) -> None:
        script = (
            "import os, strata, sys\n"
            "def die(what, done, total): os.kill(os.getpid(), 9) if done > 0 else None\n"
            "strata.export(*sys.argv[1:3], overwrite=True, max_shard_size=sys.argv[3] or None, progress=die)\n"
        )
        out = self.new("killed")
        strata.export(self.runs, out, dtype="bf16")
        before = (out / "model.safetensors").read_bytes()
        for size in ("", "20KB"):
            done = python(script, str(self.runs), str(out), size)
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            self.assertEqual([name for name in self.names(out) if not name.startswith(".")], ["model.safetensors"])
            self.assertEqual((out / "model.safetensors").read_bytes(), before)
        strata.export(self.runs, out, overwrite=True)

    def test_what_is_an_engines(self) -> None:
        own = self.scratch / "own"  # of strata.train(), too: steps, and a file `latest`
        self.assertTrue((own / "latest").is_file())
        self.assertFalse(is_engines(own))
        self.assertTrue(is_engines(self.runs) and is_engines(self.runs / "first"))
        self.assertFalse(is_engines(self.scratch / "nothing") or is_engines(self.scratch))

    def test_a_run_killed_between_micro_batches_goes_on(self) -> None:
        script = (
            "import itertools, sys; from python.tests.test_torch_exports import *\n"
            "engine = Engine(net(), CONFIG, save=sys.argv[1] + '/own')\n"
            "runs = Path(sys.argv[1]) / 'runs'\n"
            "done = engine.load(runs) if runs.exists() and (runs / 'latest').exists() else 0\n"
            "engine.module.train()\n"
            "for number in itertools.count(done):\n"
            "    if number % 2 == 0: engine.save(runs, 'even' if number % 4 else 'odd', number)\n"
            "    engine.backward(loss_of(engine, number))\n"
            "    if number % 3 == 0: engine.save(runs, 'between', number - number % 2)\n"
            "    engine.step()\n"
            "    print(number, flush=True)\n"
        )
        where = self.new("killing")
        where.mkdir()
        for turn in range(2):
            child = subprocess.Popen([sys.executable, "-c", script, str(where)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            for _ in range(7 + 4 * turn):
                self.assertNotEqual(child.stdout.readline(), "")
            child.kill()
            child.stdout.close()
            child.wait()
        engine = Engine(net(), CONFIG, save=self.scratch / "after")
        done: Any = engine.load(where / "runs")
        plain = Engine(net(), CONFIG)
        for number in range(done):
            plain.backward(loss_of(plain, number))
            plain.step()
        self.assertGreater(done, 0)
        self.assertTrue(equal(engine.module, plain.module))
        engine.destroy()
        plain.destroy()
