"""Scripts that know nothing of strata, run by `python -m strata.deepspeed`: beside plain PyTorch, and beside DeepSpeed itself
where that is installed.  Skipped without torch, transformers, accelerate and peft."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, ClassVar

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate", "peft")):
    print("torch, transformers, accelerate or peft is not installed")
    sys.exit(77)

import torch

from .common import InScratch

SCRIPTS = Path(__file__).parent / "scripts"
OURS = [sys.executable, "-m", "strata.deepspeed"]
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
CONFIG = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
    "bf16": {"enabled": False},
}
TWO_RANKS = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_processes: 2
num_machines: 1
machine_rank: 0
use_cpu: false
main_training_function: main
main_process_port: 29533
deepspeed_config:
"""


class Scripts(InScratch):
    def run_script(self, *words: Any, log: str, ranks: int = 1, **variables: str) -> list[dict[str, Any]]:
        """Each rank's file of results."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true", **variables}
        done = subprocess.run(
            [*map(str, words)], cwd=self.scratch, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return [json.loads((self.scratch / f"{log}.{rank}").read_text()) for rank in range(ranks)]

    def assert_near(self, ours: list[float], theirs: list[float], relative: float) -> None:
        self.assertEqual(len(ours), len(theirs))
        for number, (one, other) in enumerate(zip(ours, theirs)):
            self.assertAlmostEqual(one, other, delta=relative * max(abs(other), 1e-3), msg=f"number {number}")


class OfDeepSpeed(Scripts):
    def losses(self, name: str, start: list[str], ranks: int = 1, **config: Any) -> list[dict[str, Any]]:
        file = self.scratch / f"{name}.json"
        file.write_text(json.dumps({**CONFIG, **config}))
        words = [SCRIPTS / "with_deepspeed.py", "--deepspeed_config", file, "--told", name]
        return self.run_script(*start, *words, log=name, ranks=ranks)

    told: ClassVar[list[dict[str, Any]]] = []

    def alone(self) -> dict[str, Any]:
        """As the launcher of DeepSpeed starts it: with --local_rank before all else, which the script gets."""
        if not self.told:
            self.told.extend(self.losses("alone", [*OURS, "--local_rank=0"]))
        return self.told[0]

    def test_losses_are_those_of_plain_torch(self) -> None:
        ours = self.alone()
        self.assertEqual((ours["ranks"], ours["local_rank"]), (1, 0))
        spec = importlib.util.spec_from_file_location("with_deepspeed", SCRIPTS / "with_deepspeed.py")
        assert spec is not None and spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        sys.modules["deepspeed"] = script  # which is imported there, and not used by what is taken from it here
        self.addCleanup(sys.modules.pop, "deepspeed")
        spec.loader.exec_module(script)
        torch.manual_seed(7)
        net = script.Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01)
        rows = script.Digits(640)
        sampler = torch.utils.data.distributed.DistributedSampler(rows, 1, 0)
        losses, norms = [], []
        for inputs, labels in torch.utils.data.DataLoader(rows, batch_size=16, sampler=sampler):
            loss = torch.nn.functional.cross_entropy(net(inputs), labels)
            (loss / 2).backward()
            losses.append(loss.item())
            if len(losses) % 2 == 0:
                norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)))
                optimizer.step()
                optimizer.zero_grad()
            if len(norms) == 10:
                break
        self.assert_near(ours["losses"], losses, 1e-6)
        self.assert_near(ours["norms"], norms, 1e-5)

    def test_a_launcher_is_told_too(self) -> None:
        """Its processes would import DeepSpeed itself where that is installed, and say nothing."""
        words = [*OURS, "-m", "accelerate.commands.launch", "train.py"]
        done = subprocess.run(words, cwd=self.scratch, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--module strata.deepspeed", done.stderr)

    def test_ranks(self) -> None:
        """Two ranks make the steps of one that makes two micro-batches: of the same rows, which they share out otherwise."""
        alone = self.alone()
        started = [*TORCHRUN, "2", "-m", "strata.deepspeed"]
        for stage in (1, 2):
            two = self.losses(f"stage{stage}", started, 2, gradient_accumulation_steps=1, zero_optimization={"stage": stage})
            self.assertEqual([rank["ranks"] for rank in two], [2, 2])
            self.assertEqual(two[0]["norms"], two[1]["norms"])
            self.assertEqual(two[0]["sums"], two[1]["sums"])
            means = [
                [(one + other) / 2 for one, other in zip(*halves)]
                for halves in (
                    (two[0]["losses"], two[1]["losses"]),
                    (alone["losses"][::2], alone["losses"][1::2]),
                )
            ]
            self.assert_near(*means, 1e-5)
            self.assert_near(two[0]["norms"], alone["norms"], 1e-5)
            self.assert_near(two[0]["sums"], alone["sums"], 1e-4)

    def test_loss_scales_are_the_next_step_s(self) -> None:
        script = SCRIPTS / "with_fp16.py"
        ours = self.run_script(*OURS, script, "scaled", log="scaled")[0]
        self.assertEqual(ours["skipped"], [step in (4, 9) for step in range(12)])
        self.assertEqual(ours["scales"], [256] * 4 + [512] + [256] * 4 + [512] + [256] * 3)
        if importlib.util.find_spec("deepspeed"):
            theirs = self.run_script(sys.executable, script, "scaled-theirs", log="scaled-theirs", PYTHONPATH="", **ALONE)[0]
            self.assertEqual(ours, theirs)


class OfAccelerate(Scripts):
    def test_as_plain_torch(self) -> None:
        script = SCRIPTS / "with_accelerate.py"
        theirs = self.run_script(sys.executable, script, "plain", "plain-state", log="plain", ACCELERATE_USE_CPU="true")[0]
        for stage in ("1", "2"):
            deepspeed = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage}
            ours = self.run_script(*OURS, script, f"z{stage}", f"state{stage}", log=f"z{stage}", **deepspeed)[0]
            self.assertEqual((ours["kind"], ours["same"]), ("DistributedType.DEEPSPEED", True))
            self.assert_near(ours["losses"], theirs["losses"], 1e-6)
            self.assert_near(ours["rates"], theirs["rates"], 1e-6)

    def test_launched(self) -> None:
        file = self.scratch / "two.yaml"
        file.write_text(
            "mixed_precision: 'no'\n"
            + TWO_RANKS
            + "  zero_stage: 2\n  gradient_accumulation_steps: 2\n  gradient_clipping: 1.0\n"
        )
        launcher = [*OURS, "-m", "accelerate.commands.launch", "--config_file", file, "--module", "strata.deepspeed"]
        two = self.run_script(*launcher, SCRIPTS / "with_accelerate.py", "two", "two-state", log="two", ranks=2)
        self.assertEqual(
            [(rank["ranks"], rank["kind"], rank["same"]) for rank in two], [(2, "DistributedType.DEEPSPEED", True)] * 2
        )
        self.assertEqual(two[0]["losses"], two[1]["losses"])  # gathered


class OfTrainer(Scripts):
    """One process for all kinds of runs: importing takes longer than they do."""

    KINDS = ("plain", "bf16", "peft", "peft+bf16", "theirs+offload", "stage3")
    COMPUTED = "computed"  # by strata's decoder
    SHARED = "leaves+resume"  # what two ranks train, too

    told: ClassVar[dict[str, dict[str, Any]]] = {}

    def trained(self, start: list[Any], name: str, *kinds: str, ranks: int = 1, **variables: str) -> list[dict[str, Any]]:
        script = SCRIPTS / "with_trainer.py"
        return self.run_script(*start, script, name, f"{name}-out", *kinds, log=name, ranks=ranks, **variables)

    def ours(self, kind: str) -> dict[str, Any]:
        if not self.told:
            kinds = (*self.KINDS, self.COMPUTED)
            more = [f"{kind}+resume" + ("+again" if kind == "stage3" else "") for kind in kinds]
            made = self.trained(OURS, "ours", *more, self.SHARED)[0]
            self.told.update((kind, made[name]) for kind, name in zip((*kinds, self.SHARED), made))
        return self.told[kind]

    def test_a_resumed_run_has_the_same_bits(self) -> None:
        for kind in (*self.KINDS, self.COMPUTED):
            with self.subTest(kind=kind):
                told = self.ours(kind)
                self.assertEqual((len(told["loss"]), len(told["eval_loss"])), (20, 2))
                self.assertEqual((told["rest"], told["rest_digest"]), (told["loss"], told["digest"]))
                self.assertTrue(told.get("reloaded", True))
                if "again" in told:  # by another train(), from the weights of the first
                    self.assertEqual(len(told["again"]), 20)
                    self.assertLess(sum(told["again"]), sum(told["loss"]))
                (final,) = (self.scratch / "ours-out").glob(f"{kind}+resume*/final")
                name = "adapter_model.safetensors" if "peft" in kind else "model.safetensors"
                self.assertIn(name, {file.name for file in final.iterdir()})

    def test_computed_by_strata_as_by_torch(self) -> None:
        ours, theirs = self.ours(self.COMPUTED), self.ours("plain")
        for key in ("loss", "eval_loss", "grad_norm", "learning_rate"):
            self.assert_near(ours[key], theirs[key], 1e-5)

    def test_two_ranks_have_the_bits_of_one(self) -> None:
        """One that accumulates two micro-batches.  Both launchers; resumed runs, too."""
        file, config = self.scratch / "trainer.yaml", self.scratch / "trainer.json"
        file.write_text(TWO_RANKS + f"  deepspeed_config_file: {config}\n")
        plain = json.loads((SCRIPTS / "with_trainer.json").read_text())
        config.write_text(json.dumps({**plain, "strata": {"leaves": 2}}))
        launcher = [*OURS, "-m", "accelerate.commands.launch", "--config_file", file, "--module", "strata.deepspeed"]
        for name, start in (("torchrun", [*TORCHRUN, "2", "-m", "strata.deepspeed"]), ("launch", launcher)):
            with self.subTest(name):
                alone = self.ours(self.SHARED)
                for two in self.trained(start, name, self.SHARED, ranks=2):
                    told = two[self.SHARED]
                    self.assertEqual(len(alone["loss"]), 20)
                    for key in ("grad_norm", "digest", "rest_digest", "learning_rate"):
                        self.assertEqual(told[key], alone[key], key)
                    if told["loss"]:  # which rank 0 tells
                        self.assertEqual((told["loss"], told["rest"]), (alone["loss"], alone["rest"]))

    @unittest.skipUnless(importlib.util.find_spec("deepspeed"), "DeepSpeed is not installed")
    def test_as_deepspeed_itself(self) -> None:
        made = self.trained([sys.executable], "theirs", *self.KINDS, PYTHONPATH="", **ALONE)[0]
        for kind in self.KINDS:
            with self.subTest(kind=kind):
                theirs, ours = made[kind], self.ours(kind)
                self.assert_near(ours["loss"], theirs["loss"], 1e-4)
                self.assert_near(ours["eval_loss"], theirs["eval_loss"], 1e-4)
                # DeepSpeed adds up micro-batches in bf16: with grad_accum_dtype fp32 its own norms differ by as much.
                self.assert_near(ours["grad_norm"], theirs["grad_norm"], 3e-3 if "bf16" in kind else 1e-4)
                self.assert_near(ours["learning_rate"], theirs["learning_rate"], 1e-6)


if __name__ == "__main__":
    unittest.main()
