"""Checkpoints of strata.torch.Engine that load() must refuse: damaged, crafted, of others.  A refusal changes nothing."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import random
import shutil
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
from strata.torch import Engine

from .common import flip
from .test_torch_engine import CONFIG, SINGLE, equal, loss_of, net, tier, train

Client = dict[str, Any]
PARAMETERS = 11  # of net()


def packed(value: Any) -> torch.Tensor:
    inner = io.BytesIO()
    torch.save(value, inner)
    return torch.frombuffer(bytearray(inner.getvalue()), dtype=torch.uint8)


def craft(place: Path, change: Callable[[Client], object], rank: int = 0) -> None:
    """A client file with right checksums that has something else."""
    path = place / f"client-{rank}.pt"
    client = torch.load(path, weights_only=True)
    change(client)
    torch.save(client, path)
    told = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**told, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))


def state(engine: Engine) -> list[Any]:
    """Of all that load() replaces."""
    buffers = [buffer.tolist() for buffer in engine.module.buffers()]
    groups = [{name: value for name, value in group.items() if name != "params"} for group in engine.optimizer.param_groups]
    drawn = random.getstate(), torch.get_rng_state().tolist()
    numpy = sys.modules["numpy"].random.get_state()[1].tolist() if "numpy" in sys.modules else None
    return [engine._layers.digest(), engine._layers.info.steps, buffers, groups, drawn, numpy]


def set_group(name: str, value: Any) -> Callable[[Client], object]:
    def change(client: Client) -> None:
        client["optimizer"] = packed({"param_groups": [{"params": list(range(PARAMETERS)), name: value}]})

    return change


class Loads(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="strata-loads-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.runs = self.scratch / "runs"

    def engine(self, config: dict[str, Any] = SINGLE, name: str = "own", **what: Any) -> Engine:
        made = Engine(net(), config, save=self.scratch / name, **what)
        self.addCleanup(made.destroy)
        return made

    def refused(self, engine: Engine, error: type[Exception], words: str, **how: Any) -> None:
        before = state(engine)
        with self.assertRaisesRegex(error, words):
            engine.load(self.runs, **how)
        self.assertEqual(state(engine), before)

    def test_damage_leaves_the_run(self) -> None:
        (self.scratch / "drive").mkdir()
        nvme = {**CONFIG, "bf16": {"enabled": True}, **tier("nvme", str(self.scratch / "drive"))}
        for number, (config, overlap) in enumerate(((CONFIG, False), (nvme, False), (nvme, True))):
            with self.subTest(number):
                plain, tries = (self.engine(config, f"{name}{number}", overlap=overlap) for name in ("plain", "tries"))
                train(plain, range(3))
                train(tries, range(2))
                tries.save(self.runs)
                self.assertTrue(tries.saved(wait=True))
                train(tries, range(2, 3))
                place = self.runs / "global_step2"
                for name in ("strata/set.0", "strata/extents.bin", "strata/manifest.json", "client-0.pt", "client-0.json"):
                    for alone in (False, True):
                        kept = flip(place / name)
                        with self.assertRaisesRegex(strata.Error, name.replace("client-0.json", "client-0")):
                            tries.load(self.runs, weights_only=alone)
                        (place / name).write_bytes(kept)
                train(plain, range(3, 5))
                train(tries, range(3, 5))
                plain.flush()
                tries.flush()
                self.assertEqual(plain._layers.digest(), tries._layers.digest())
                tries.save(self.runs, "on")
                self.assertTrue(tries.saved(wait=True))
                tries.load(self.runs, "global_step2")
                train(tries, range(2, 5))
                tries.flush()
                self.assertTrue(equal(plain.module, tries.module))
                shutil.rmtree(self.runs)

    def test_crafted_files_are_refused(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs)
        self.assertTrue(engine.saved(wait=True))
        train(engine, range(1, 2))
        place = self.runs / "global_step1"
        buffer = next(name for name, _ in engine.module.named_buffers())
        changes: list[tuple[Callable[[Client], object], str]] = [
            *((lambda c, key=key: c.pop(key), f"client-0.pt is damaged .it has no '{key}'") for key in ALL),
            *((lambda c, key=key: c.update({key: 7}), f"client-0.pt is damaged .{key} is int") for key in ALL),
            (lambda c: c["random"].pop("torch"), "client-0.pt is damaged .it has no 'torch'"),
            (lambda c: c["random"].update(python=(3, (1, 2), None)), "client-0.pt is damaged"),
            (lambda c: c["random"].update(torch=torch.zeros(5, dtype=torch.uint8)), "client-0.pt is damaged"),
            (lambda c: c["random"].update(torch=torch.zeros(5000)), "client-0.pt is damaged"),
            (lambda c: c["random"].update(numpy=("MT19937", [1, 2], 0, 0, 0.0)), "client-0.pt is damaged"),
            (lambda c: c["buffers"].update({buffer: 1.0}), "no plain tensor"),
            (lambda c: c["buffers"].pop(buffer), f"{buffer} is neither a parameter nor a buffer"),
            (lambda c: c["names"].update(other=None), "other is neither a parameter nor a buffer"),
            (lambda c: c.update(optimizer=packed([])), "another optimizer"),
            (lambda c: c.update(optimizer=packed({"param_groups": 3})), "another optimizer"),
            (lambda c: c.update(optimizer=packed({"param_groups": [{"params": [0]}]})), "other groups"),
            (set_group("lr", "fast"), "another optimizer"),
            (set_group("lr", float("nan")), "lr of nan"),
            (set_group("betas", (0.9,)), "another optimizer"),
            (set_group("eps", 0.5), "eps of 0.5"),
            (lambda c: c.update(client_state=torch.zeros(9, dtype=torch.uint8)), "client_state cannot be made"),
            (lambda c: c.update(client_state=torch.zeros(9)), "what is packed is no bytes"),
        ]
        if importlib.util.find_spec("numpy") is not None:
            importlib.import_module("numpy").random.rand()
        else:
            changes = [row for row in changes if "numpy" not in str(row)]
        kept = {name: (place / name).read_bytes() for name in ("client-0.pt", "client-0.json")}
        self.assertEqual(sum(len(group["params"]) for group in engine.optimizer.param_groups), PARAMETERS)
        for change, words in changes:
            with self.subTest(words):
                craft(place, change)
                self.refused(engine, (strata.Error, ValueError), words)
                for name, data in kept.items():
                    (place / name).write_bytes(data)
        engine.load(self.runs)
        self.assertEqual(engine._layers.info.steps, 1)
        with self.assertRaisesRegex(ValueError, r"has no buffer more"):
            engine.module.register_buffer("more", torch.ones(3))
            engine.load(self.runs)

    def test_places_that_are_wrong(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs)
        self.assertTrue(engine.saved(wait=True))
        for data, words in ((b"", "latest is damaged .it names no"), (b"\xff", "latest is damaged"), (b"a" * 999, "latest")):
            (self.runs / "latest").write_bytes(data)
            self.refused(engine, strata.Error, f"{words}.*name one of global_step1")
        (self.runs / "latest").write_bytes(b"never")
        self.refused(engine, FileNotFoundError, "has no checkpoint never: there are global_step1")
        (self.runs / "latest").unlink()
        self.refused(engine, FileNotFoundError, "no checkpoint that a file `latest` names: name one of global_step1")
        for name in ("client-0.json", "client-0.pt", "strata/manifest.json", "strata/set.0", "strata"):
            path = self.runs / "global_step1" / name
            path.rename(self.scratch / "away")
            self.refused(engine, strata.Error, f"{name}.*(is missing|No such file)", tag="global_step1")
            path.mkdir()
            self.refused(engine, (strata.Error, FileNotFoundError), name, tag="global_step1")
            path.rmdir()
            (self.scratch / "away").rename(path)
        engine.load(self.runs, "global_step1")
        self.assertEqual(engine.load(self.runs / "global_step1"), None)  # by its own name

    def test_objects_in_groups_need_trust_to_load_alone(self) -> None:
        engine = self.engine()
        engine.optimizer.param_groups[0]["note"] = argparse.Namespace(of="mine")
        train(engine, range(1))
        engine.save(self.runs)
        self.assertTrue(engine.saved(wait=True))
        strata.export(self.runs, self.scratch / "out")
        self.refused(engine, ValueError, r"its optimizer has objects .* load\(trusted=True\) .*argparse.Namespace")
        engine.load(self.runs, weights_only=True)
        engine.load(self.runs, trusted=True)
        place = self.runs / "global_step1"

        class Runs:
            def __reduce__(self) -> Any:
                return os.system, ("true",)

        craft(place, lambda c: c.update(optimizer=packed({"param_groups": Runs()})))
        self.refused(engine, strata.Error, "client-0.pt is damaged: its optimizer cannot be made")

    def test_frozen_weights_of_a_run_that_has_saved(self) -> None:
        """Its checkpoints share them: others are refused before a trained one is set."""
        module = net()
        module[0].weight.requires_grad_(False)
        engine = Engine(module, SINGLE, save=self.scratch / "own")
        self.addCleanup(engine.destroy)
        train(engine, range(1))
        engine.save(self.runs)
        self.assertTrue(engine.saved(wait=True))
        train(engine, range(1, 2))
        engine.load(self.runs, weights_only=True)
        other = net()
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(2)
        other[0].weight.requires_grad_(False)
        made = Engine(other, SINGLE, save=self.scratch / "other")
        self.addCleanup(made.destroy)
        made.save(self.scratch / "others")
        self.assertTrue(made.saved(wait=True))
        before = state(engine)
        with self.assertRaisesRegex(strata.Error, "frozen"):
            engine.load(self.scratch / "others", weights_only=True)
        self.assertEqual(state(engine), before)

    def test_two_ranks_refuse_together(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
             "python.tests.test_torch_loads", str(self.scratch)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        for rank in range(2):
            digests, refusals = json.loads((self.scratch / f"{rank}.json").read_text())
            self.assertEqual(digests[0], digests[1])
            self.assertEqual(len(refusals), 4)
            for number, words in enumerate(("rank-1.set.0", "client-1.pt", "client-1.pt", "client-0.pt")):
                mine = number == 3 or rank == 1
                self.assertIn(words if mine else "rank 1", refusals[number])


ALL = ("random", "buffers", "names", "optimizer", "client_state")


def main_of_a_rank(scratch: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank, digests, refusals = torch.distributed.get_rank(), [], []
    place = scratch / "runs" / "global_step2"

    def attempts(engine: Engine) -> None:
        attacks: list[tuple[str, Callable[[Path], object]]] = [
            ("strata/rank-1.set.0", flip),
            ("client-1.pt", lambda path: path.unlink()),
            ("client-1.pt", lambda path: craft(place, lambda c: c["random"].pop("torch"), 1)),
            ("client-0.pt", flip),
        ]
        for name, attack in attacks:
            torch.distributed.barrier()
            if rank == 0:
                shutil.copytree(place, scratch / "kept")
                attack(place / name)
            torch.distributed.barrier()
            try:
                engine.load(scratch / "runs")
            except (strata.Error, RuntimeError) as error:
                refusals.append(str(error))
            torch.distributed.barrier()
            if rank == 0:
                shutil.rmtree(place)
                (scratch / "kept").rename(place)

    for tries in (False, True):
        config = {**CONFIG, "train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "gradient_accumulation_steps": 1}
        engine = Engine(net(), {**config, "zero_optimization": {"stage": 2}}, save=scratch / f"own{tries}")
        for step in range(4):
            engine.backward(loss_of(engine, 2 * step + rank))
            engine.step()
            if step == 1:
                engine.save(scratch / "runs")
                engine.saved(wait=True)
            if step == 2 and tries:
                attempts(engine)
        engine.flush()
        digests.append(engine._layers.digest())
        if tries:
            engine.load(scratch / "runs")
        engine.destroy()
    (scratch / f"{rank}.json").write_text(json.dumps([digests, refusals]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main_of_a_rank(Path(sys.argv[1]))
