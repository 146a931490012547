"""What strata.torch.Engine saves when it is asked to: between micro-batches, twice, before the first step."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

from strata.torch import Engine

from .test_torch_engine import CONFIG, equal, loss_of, net, tier, train


class Saves(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="strata-saves-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.runs = self.scratch / "runs"

    def engine(self, config: dict[str, Any] = CONFIG, name: str = "own", **what: Any) -> Engine:
        made = Engine(net(), config, save=self.scratch / name, **what)
        self.addCleanup(made.destroy)
        return made

    def micro(self, engine: Engine, number: int) -> None:
        engine.backward(loss_of(engine, number))
        engine.step()

    def loaded(self, tag: str, config: dict[str, Any] = CONFIG) -> tuple[Engine, Any]:
        engine = self.engine(config, f"{tag}-{time.monotonic_ns()}")
        return engine, engine.load(self.runs, tag)

    def test_a_save_between_micro_batches_changes_nothing(self) -> None:
        four = {**CONFIG, "train_batch_size": 4, "gradient_accumulation_steps": 4}
        for more in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}, tier("nvme", "")):
            for overlap in (False, True):
                drive = self.scratch / "drive"
                drive.mkdir(exist_ok=True)
                config = {**four, **(tier("nvme", str(drive)) if "zero_optimization" in more else more)}
                name = f"{'-'.join(more)}{overlap}"
                with self.subTest(name):
                    plain = self.engine(config, "plain" + name, overlap=overlap)
                    saving = self.engine(config, "saving" + name, overlap=overlap)
                    for number in range(12):
                        self.micro(plain, number)
                        before = copy.deepcopy(saving.module)
                        self.micro(saving, number)
                        if number in (4, 6, 9):
                            saving.save(self.runs, f"{name}-{number}", number)
                        if number == 6:
                            self.assertTrue(saving.saved(wait=True))
                            known = before
                    plain.flush()
                    saving.flush()
                    self.assertTrue(equal(plain.module, saving.module))
                    self.assertEqual((saving._layers.info.steps, saving.loss_scale), (3, plain.loss_scale))
                    saving.saved(wait=True)
                    engine, client = self.loaded(f"{name}-6", config)
                    self.assertEqual((client, engine._layers.info.steps), (6, 1))
                    if not overlap:
                        self.assertTrue(equal(engine.module, known))
                    for number in range(4, 12):
                        self.micro(engine, number)
                    self.assertTrue(equal(engine.module, plain.module))

    def test_a_save_within_a_step_has_the_name_of_the_one_before(self) -> None:
        engine = self.engine()
        for number in range(5):
            self.micro(engine, number)
        self.assertEqual(engine.save(self.runs).name, "global_step2")
        self.micro(engine, 5)
        self.assertEqual(engine.save(self.runs).name, "global_step3")
        engine.load(self.runs, "global_step2")
        self.micro(engine, 6)
        self.assertEqual(engine.save(self.runs).name, "global_step2")

    def test_a_save_before_the_step_that_ends(self) -> None:
        plain, saving = self.engine(name="plain"), self.engine()
        for number in range(4):
            for engine in (plain, saving):
                engine.backward(loss_of(engine, number))
                if engine is saving:
                    engine.save(self.runs, f"at-{number}")
                engine.step()
        self.assertTrue(equal(plain.module, saving.module))

    def test_a_step_is_saved_as_often_as_one_likes(self) -> None:
        engine = self.engine()
        engine.save(self.runs, "first", "nothing yet")
        initial = copy.deepcopy(engine.module)
        train(engine, range(2))
        trained = copy.deepcopy(engine.module)
        for number in range(3):
            engine.save(self.runs if number < 2 else self.scratch / "elsewhere", f"copy-{number}", number)
        with torch.no_grad():
            engine.module[5].weight.mul_(0.5)
        changed = copy.deepcopy(engine.module)
        engine.save(self.runs, "changed")
        with torch.no_grad():
            engine.module[5].weight.mul_(2)
        engine.save(self.runs, "back")
        self.assertTrue(engine.saved(wait=True))
        train(engine, range(2, 4))
        wanted = {"first": initial, "copy-0": trained, "copy-1": trained, "changed": changed, "back": trained}
        for tag, known in wanted.items():
            self.assertTrue(equal(self.loaded(tag)[0].module, known), tag)
        again, client = self.loaded("first")
        self.assertEqual((client, again._layers.info.steps), ("nothing yet", 0))
        train(again, range(4))
        self.assertTrue(equal(again.module, engine.module))

    def test_objects_of_any_class_need_trust(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs, "plain", {"epoch": 1, "best": torch.tensor(2.0)})
        engine.save(self.runs, "objects", argparse.Namespace(epoch=1))
        self.assertTrue(engine.saved(wait=True))
        self.assertEqual(engine.load(self.runs, "plain")["epoch"], 1)
        with self.assertRaisesRegex(ValueError, r"load\(trusted=True\)"):
            engine.load(self.runs, "objects")
        self.assertEqual(engine.load(self.runs, "objects", trusted=True).epoch, 1)

    def test_weights_alone(self) -> None:
        engine = self.engine()
        train(engine, range(3))
        engine.save(self.runs, "trained", "told")
        self.assertTrue(engine.saved(wait=True))
        sgd = {**CONFIG, "bf16": {"enabled": True}, "optimizer": {"type": "SGD", "params": {"lr": 1e-2}}}
        other, wanted = self.engine(sgd, "other"), Engine(copy.deepcopy(engine.module), sgd)
        self.addCleanup(wanted.destroy)
        self.assertEqual(other.load(self.runs, weights_only=True), "told")  # of another optimizer, in another precision
        self.assertTrue(equal(other.module, wanted.module))
        self.assertEqual(other._layers.info.steps, 0)
        train(other, range(2))
        train(wanted, range(2))
        self.assertTrue(equal(other.module, wanted.module))
        smaller = Engine(net()[:-1], CONFIG)
        self.addCleanup(smaller.destroy)
        with self.assertRaisesRegex(ValueError, "the module has no 8.bias.*strict=False"):
            smaller.load(self.runs, weights_only=True)
        smaller.load(self.runs, weights_only=True, strict=False)
        self.assertTrue(equal(smaller.module, engine.module[:-1]))
        train(other, range(2, 3))
        other.save(self.runs, "on")
        self.assertTrue(other.saved(wait=True))
