"""DeepSpeed's words in one process: what initialize() takes and returns, schedules, checkpoints, and what is refused."""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
from strata import deepspeed, optim
from strata.deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from strata.deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from strata.deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from strata.deepspeed.runtime import lr_schedules
from strata.torch import Engine

from .common import InScratch, flip, python, python_module

CONFIG = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
    "bf16": {"enabled": False},
}


def net(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 3))


def data(rows: int, seed: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(seed)
    return [(torch.randn(6, generator=made), torch.randn(3, generator=made)) for _ in range(rows)]


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {**{key: value for key, value in CONFIG.items() if key not in keys}, **changes}


class Engines(InScratch):
    def engine(self, config: Any = None, model: torch.nn.Module | None = None, **what: Any) -> Any:
        made = deepspeed.initialize(model=model or net(), config=config or CONFIG, **what)[0]
        self.addCleanup(made.destroy)
        return made

    @staticmethod
    def train(engine: Any, micros: int, seed: int = 2) -> list[float]:
        losses = []
        rows = data(4 * micros, seed)
        for at in range(0, len(rows), 4):
            inputs, targets = (torch.stack(column) for column in zip(*rows[at : at + 4]))
            loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses


class Initialize(Engines):
    def test_the_four_results(self) -> None:
        model = net()
        engine, optimizer, loader, scheduler = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), training_data=data(10), config_params=CONFIG
        )
        self.addCleanup(engine.destroy)
        self.assertIs(engine.module, model)
        self.assertIsInstance(engine, torch.nn.Module)
        self.assertIsInstance(engine, deepspeed.DeepSpeedEngine)
        self.assertIsInstance(optimizer, torch.optim.Optimizer)
        self.assertIs(optimizer, engine.optimizer)
        self.assertIsNone(scheduler)
        self.assertEqual([len(inputs) for inputs, _ in loader], [4, 4, 2])
        self.assertEqual((engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()), (8, 4))
        self.assertEqual((engine.gradient_accumulation_steps(), engine.gradient_clipping()), (2, 0.5))
        self.assertEqual((engine.local_rank, engine.global_rank, engine.world_size), (0, 0, 1))
        self.assertEqual((engine.device, engine.config), (torch.device("cpu"), CONFIG))
        self.assertFalse(engine.bfloat16_enabled() or engine.fp16_enabled())
        self.assertEqual(engine.zero_optimization_stage(), 0)
        self.assertTrue(torch.distributed.is_initialized())

    def test_configurations(self) -> None:
        parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
        plain, commented = self.scratch / "plain.json", self.scratch / "commented.json"
        plain.write_text(json.dumps(CONFIG))
        commented.write_text(f"// as DeepSpeed reads it\n{json.dumps(CONFIG)}")
        args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(plain)])
        self.assertTrue(args.deepspeed)
        for what in ({"config": str(plain)}, {"config": commented}, {"config_params": CONFIG}, {"args": args}):
            with self.subTest(*what):
                engine = deepspeed.initialize(model=net(), **what)[0]
                self.addCleanup(engine.destroy)
                self.assertEqual(engine.config["gradient_clipping"], 0.5)
                self.assertEqual(engine.get_lr(), [0.01])

    def test_a_commented_file_says_no_more_than_is_in_it(self) -> None:
        """Its defaults are not taken for what somebody asked for."""
        file = self.scratch / "commented.json"
        for changes in ({}, {"strata": {"leaves": 1, "limits": {"upload": 0}}}):
            plain = without("optimizer", **changes)
            file.write_text(f"// as DeepSpeed reads it\n{json.dumps(plain)}")
            model = net()
            with self.assertNoLogs("strata", "WARNING"):
                adam = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
                engine = self.engine(str(file), model, optimizer=adam)
            self.assertEqual(engine.config.get("strata", {}), changes.get("strata", {}))
            self.train(engine, 2)
            self.assertTrue(engine.save_checkpoint(str(self.scratch / "of-a-commented-file")))

    def test_keys_that_mean_nothing_here_are_passed_through(self) -> None:
        config = without(steps_per_print=float("inf"), some_new_key=3, zero_optimization={"stage": 2, "overlap_comm": True})
        self.assertEqual(self.engine(config).zero_optimization_stage(), 2)

    def test_unknown_keys(self) -> None:
        """At the top they are other programs'; within a section they are slips, and would train with other values."""
        with self.assertLogs("DeepSpeed", "WARNING") as heard:
            self.engine(without(some_new_key=3, other={"a": 1}))
        self.assertEqual(len(heard.output), 1)
        self.assertIn("(2): some_new_key, other", heard.output[0])
        slips = {
            "zero_optimization.offload_optimiser": {"zero_optimization": {"offload_optimiser": {"device": "cpu"}}},
            "optimizer.params.weight_decy": {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decy": 0.1}}},
        }
        commented = self.scratch / "slips.json"
        for path, changes in slips.items():
            commented.write_text(f"// as DeepSpeed reads it\n{json.dumps(without(**changes))}")
            for config in (without(**changes), str(commented)):
                with self.assertRaisesRegex(strata.Error, path) as raised:
                    deepspeed.initialize(model=net(), config=config)
                self.assertEqual(raised.exception.key, path)
                self.assertNotIn("allow_unknown", str(raised.exception))

    def test_a_refused_file_is_named(self) -> None:
        for name, changes, path in (
            ("value", {"zero_optimization": {"stage": 7}}, "zero_optimization.stage"),
            ("slip", {"zero_optimization": {"stagee": 2}}, "zero_optimization.stagee"),
            ("schedule", {"scheduler": {"type": "Sawtooth"}}, "scheduler.type"),
        ):
            file = self.scratch / f"{name}.json"
            for comment in ("", "// as DeepSpeed reads it\n"):
                file.write_text(comment + json.dumps(without(**changes)))
                with self.assertRaises((strata.Error, ValueError)) as raised:
                    deepspeed.initialize(model=net(), config=str(file))
                self.assertIn(f"{file}: {path}", str(raised.exception))

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "Accelerate is not installed")
    def test_a_refused_file_that_accelerate_has_read_is_named(self) -> None:
        file = self.scratch / "theirs.json"
        file.write_text(json.dumps(without(zero_optimization={"stage": 7})))
        done = python(
            "import strata.deepspeed as deepspeed, sys, torch; deepspeed.install()\n"
            "from accelerate import DeepSpeedPlugin\n"
            "plugin = DeepSpeedPlugin(hf_ds_config=sys.argv[1])\n"
            "deepspeed.initialize(model=torch.nn.Linear(2, 2), config_params=plugin.deepspeed_config)\n",
            str(file),
        )
        self.assertIn(f"{file}: zero_optimization.stage: 7", done.stderr.strip().splitlines()[-1])

    def test_attributes_are_the_modules(self) -> None:
        model = net()
        model.name_or_path = "mine"
        engine = self.engine(model=model)
        self.assertEqual(engine.name_or_path, "mine")
        with self.assertRaisesRegex(AttributeError, "nothing_of_this_name"):
            engine.nothing_of_this_name  # noqa: B018

    def test_optimizers(self) -> None:
        model = net()
        kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "torch": lambda weights: torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.1),
            "strata": lambda weights: optim.AdamW(weights, lr=1e-2, weight_decay=0.1),
            "deepspeed": lambda weights: DeepSpeedCPUAdam(weights, lr=1e-2, weight_decay=0.1),
        }
        losses = {"config": self.train(self.engine(), 8)}
        for name, make in kinds.items():
            for given in (make(model.parameters()), make):
                model.load_state_dict(net().state_dict())
                engine = self.engine(without("optimizer"), model, optimizer=given)
                losses[f"{name} {callable(given)}"] = self.train(engine, 8)
                engine.destroy()
                model = net()
        for name, found in losses.items():
            for one, other in zip(found, losses["config"], strict=True):
                self.assertAlmostEqual(one, other, delta=1e-6, msg=name)

    def test_decay_of_adam_is_as_its_optimizers(self) -> None:
        def adam(kind: Callable[..., torch.optim.Optimizer], **settings: Any) -> list[float]:
            model = net()
            optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.3, **settings)
            return self.train(self.engine(without("optimizer"), model, optimizer=optimizer), 8)

        added, decoupled = adam(torch.optim.Adam), adam(torch.optim.AdamW)
        self.assertGreater(abs(added[-1] - decoupled[-1]), 1e-4)
        self.assertEqual(added, adam(optim.Adam))
        self.assertEqual(added, adam(DeepSpeedCPUAdam, adamw_mode=False))
        self.assertEqual(decoupled, adam(DeepSpeedCPUAdam))
        self.assertNotEqual(decoupled, adam(DeepSpeedCPUAdam, fp32_optimizer_states=False))
        self.assertRaisesRegex(ValueError, "strata.moments", adam, optim.AdamW, moments="8bit")

    def test_what_names_no_precision_casts_nothing(self) -> None:
        for kind, config in ((torch.bfloat16, without("bf16")), (torch.float32, without("bf16")), (torch.float32, CONFIG)):
            self.assertEqual({one.dtype for one in self.engine(config, net().to(kind)).parameters()}, {kind})

    def test_buffers_keep_their_dtype(self) -> None:
        """Rotary frequencies in bf16 would be wrong from some hundred tokens on; batch norms compute in the model's dtype."""
        model = net()
        model.register_buffer("frequencies", 10000.0 ** -torch.linspace(0, 1, 9))
        whole = model.frequencies.clone()
        engine = self.engine(without(bf16={"enabled": True}), model)
        self.assertTrue(torch.equal(engine.frequencies, whole))
        self.assertEqual((model[0].weight.dtype, model[1].running_mean.dtype), (torch.bfloat16, torch.bfloat16))
        engine(torch.zeros(4, 6, dtype=torch.bfloat16))

    def test_a_module_that_has_an_engine(self) -> None:
        """It ends, and the module's weights go on."""
        offload = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
        for zero in ({"stage": 0}, {"stage": 3, **offload}):
            config = {"train_batch_size": 4, "optimizer": CONFIG["optimizer"], "zero_optimization": zero}
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(2)))
            model.forward = lambda x, layers=model[0]: layers[1](layers[0](x))[:, :3]
            first = self.engine(config, model)
            self.train(first, 2)
            weights = copy.deepcopy(first.module.state_dict())
            other = copy.deepcopy(weights)
            second = self.engine(config, model)
            self.assertRaisesRegex(RuntimeError, "called again.*the new engine", first.step)
            for name, value in second.module.state_dict().items():
                self.assertTrue(torch.equal(value, weights[name]), name)
            second.module.load_state_dict(other)
            self.assertLess(self.train(second, 8)[-1], 10)

    def test_without_an_optimizer_an_engine_computes_forward(self) -> None:
        for stage, enabled in ((0, False), (3, True)):
            model = net().eval()
            kind = torch.bfloat16 if enabled else torch.float32
            expected = copy.deepcopy(model).to(kind)(torch.ones(4, 6, dtype=kind))
            config = without("optimizer", zero_optimization={"stage": stage}, bf16={"enabled": enabled})
            if stage == 3:
                config["zero_optimization.reduce_bucket_size"] = 1024  # as TRL writes it
            engine, *others = deepspeed.initialize(model=model, config=config)
            self.assertEqual(others, [None, None, None])
            self.assertIsInstance(engine, deepspeed.DeepSpeedEngine)
            engine.eval()
            self.assertTrue(torch.equal(engine(torch.ones(4, 6, dtype=kind)), expected))
            self.assertEqual((engine.zero_optimization_stage(), engine.get_lr()), (stage, []))
            engine.destroy()

    def test_stage_3_is_told_to_whoever_asks_parameters(self) -> None:
        from strata.deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        engine = self.engine(without(zero_optimization={"stage": 3}))
        for one in engine.parameters():
            self.assertIs(one.ds_status, ZeroParamStatus.AVAILABLE)
            self.assertEqual((one.ds_shape, one.ds_numel), (one.shape, one.numel()))
        self.assertEqual(len({one.ds_id for one in engine.parameters()}), 6)
        offload = engine.optimizer.parameter_offload  # as TRL takes hooks off, and puts them on
        self.assertEqual((offload.forward_hooks, offload.module.ds_external_parameters()), ([], []))
        for one in offload.module.parameters():
            one.ds_active_sub_modules.clear()
        offload._register_deepspeed_module(offload.module)
        self.train(engine, 2)
        copy.deepcopy(engine.module)
        torch.save(engine.module, self.scratch / "whole.pt")
        self.assertFalse(hasattr(next(iter(self.engine().parameters())), "ds_id"))

    def test_a_scheduler_outside_changes_the_rates(self) -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        engine = self.engine(without("optimizer"), model, optimizer=optimizer)  # the script steps the scheduler itself
        self.train(engine, 2)
        scheduler.step()
        self.assertEqual(engine.get_lr(), [0.005])

    def test_parameters_in_groups(self) -> None:
        model = net()
        groups = [{"params": model[0].parameters(), "weight_decay": 0.0}, {"params": model[3].parameters(), "lr": 1e-3}]
        engine = self.engine(model=model, model_parameters=groups)
        self.assertEqual(engine.get_lr(), [0.01, 0.001])
        before = copy.deepcopy(model.state_dict())
        self.train(engine, 2)
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        self.assertEqual({name for name in changed if "weight" in name}, {"0.weight", "3.weight"})  # 1.weight is in no group


class Steps(Engines):
    def test_losses_are_those_of_plain_torch(self) -> None:
        for accumulation in (1, 2):
            with self.subTest(accumulation=accumulation):
                config = without("train_batch_size", "gradient_accumulation_steps", train_micro_batch_size_per_gpu=4)
                config["gradient_accumulation_steps"] = accumulation
                ours = self.train(self.engine(config), 10 * accumulation)
                model = net()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
                theirs = []
                rows = data(40 * accumulation)
                for number, at in enumerate(range(0, len(rows), 4)):
                    inputs, targets = (torch.stack(column) for column in zip(*rows[at : at + 4]))
                    loss = torch.nn.functional.mse_loss(model(inputs), targets)
                    (loss / accumulation).backward()
                    theirs.append(loss.item())
                    if (number + 1) % accumulation == 0:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                        optimizer.step()
                        optimizer.zero_grad()
                for one, other in zip(ours, theirs, strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-6)

    def test_boundaries_counts_and_norms(self) -> None:
        engine = self.engine()
        self.assertIsNone(engine.get_global_grad_norm())
        seen = []
        rows = data(16)
        inputs, targets = (torch.stack(column) for column in zip(*rows))
        for at in range(0, 16, 4):
            seen.append(engine.is_gradient_accumulation_boundary())
            loss = torch.nn.functional.mse_loss(engine(inputs[at : at + 4]), targets[at : at + 4])
            self.assertAlmostEqual(engine.backward(loss).item(), loss.item() / 2, places=6)
            engine.zero_grad()  # drops nothing
            engine.step()
            self.assertEqual(engine.was_step_applied(), seen[-1])
        self.assertEqual(seen, [False, True, False, True])
        self.assertEqual((engine.micro_steps, engine.global_steps, engine.global_samples), (4, 2, 16))
        self.assertGreater(engine.get_global_grad_norm(), 0)

    def test_norms_of_bf16(self) -> None:
        """PyTorch's bf16 gradients are added up in fp32, and the sum is rounded to bf16 once."""
        engine = self.engine(without("train_batch_size", bf16={"enabled": True}, train_micro_batch_size_per_gpu=4))
        plain = copy.deepcopy(engine.module)
        sums = {name: torch.zeros(p.shape) for name, p in plain.named_parameters()}
        for seed in range(2):
            inputs = torch.randn(4, 6, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(seed))
            plain.zero_grad()
            (plain(inputs).float().square().mean() / 2).backward()
            for name, p in plain.named_parameters():
                sums[name] += p.grad.float()
            engine.backward(engine(inputs).float().square().mean())
            engine.step()
        wanted = sum(total.bfloat16().double().square().sum() for total in sums.values()).sqrt().item()
        self.assertAlmostEqual(engine.get_global_grad_norm() / wanted, 1, delta=1e-6)

    def test_lines_of_progress(self) -> None:
        with self.assertLogs("DeepSpeed", "INFO") as heard:
            self.train(self.engine(without(steps_per_print=2)), 10)
        self.assertEqual(sum("DeepSpeed info: version=0.19.8, of strata" in line for line in heard.output), 1)
        lines = [line for line in heard.output if "step=" in line]
        self.assertEqual(len(lines), 2)
        self.assertIn("step=4, skipped=0, lr=[0.01], mom=[[0.9, 0.999]]", lines[1])

    def test_a_boundary_that_the_caller_sets(self) -> None:
        engine, counted = self.engine(), self.engine()
        self.train(counted, 2)
        rows = data(8)
        for at, last in ((0, False), (4, True)):
            engine.set_gradient_accumulation_boundary(is_boundary=last)
            inputs, targets = (torch.stack(column) for column in zip(*rows[at : at + 4]))
            with engine.no_sync():
                loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            scaled = engine.backward(loss / 2, scale_wrt_gas=False)
            self.assertAlmostEqual(scaled.item(), loss.item() / 2, places=6)
            engine.step()
        self.assertEqual(engine.get_global_grad_norm(), counted.get_global_grad_norm())
        for one, other in zip(engine.parameters(), counted.parameters(), strict=True):
            self.assertTrue(torch.equal(one, other))

    def test_an_update_beside_the_next_forward(self) -> None:
        """The configuration's strata.update "gated": what asks for weights waits for them."""
        later, at_once = self.engine(without(strata={"update": "gated"})), self.engine()
        self.assertEqual(self.train(later, 6), self.train(at_once, 6))
        with deepspeed.zero.GatheredParameters(list(later.parameters())):
            for one, other in zip(later.parameters(), at_once.parameters(), strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_gradients_of_another_backward(self) -> None:
        engine = self.engine(without(gradient_accumulation_steps=1))
        for clear in (engine.zero_grad, engine.optimizer.zero_grad):
            engine(torch.ones(4, 6)).sum().backward()
            self.assertRaisesRegex(RuntimeError, r"zero_grad\(\) clears it.*engine.backward", engine.step)
            clear()
            self.train(engine, 2)
        self.assertEqual(engine.get_mom(), [[0.9, 0.999]])

    def test_clipping_is_never_lost(self) -> None:
        engine = self.engine()
        self.train(engine, 2)
        norm = torch.nn.utils.clip_grad_norm_(engine.parameters(), 0.5)
        self.assertAlmostEqual(float(norm), engine.get_global_grad_norm(), places=6)
        for call in (
            lambda: torch.nn.utils.clip_grad_norm_(engine.parameters(), 1.0),
            lambda: torch.nn.utils.clip_grad_norm_(next(iter(engine.parameters())), 0.5, norm_type=1),
        ):
            self.assertRaisesRegex(ValueError, "gradient_clipping 0.5", call)
        other = net()
        sum(one.sum() for one in other.parameters()).backward()
        self.assertGreater(float(torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)), 1)


class Schedules(Engines):
    # DeepSpeed 0.19.8's, of its steps 1 to 14 with an optimizer of lr 7e-4.
    RATES: tuple[tuple[str, dict[str, Any], str], ...] = (
        (
            "WarmupLR",
            {"warmup_min_lr": 0.0, "warmup_max_lr": 0.001, "warmup_num_steps": 4},
            "0 0 0.0005 0.000792481 0.001 0.001 0.001",
        ),
        (
            "WarmupDecayLR",
            {"total_num_steps": 10, "warmup_max_lr": 0.001, "warmup_num_steps": 3, "warmup_type": "linear"},
            "0 0 0.000333333 0.000666667 0.001 0.000857143 0.000714286 0.000571429 0.000428571 0.000285714 0.000142857 0 0 0",
        ),
        (
            "WarmupCosineLR",
            {
                "total_num_steps": 10,
                "warmup_num_steps": 3,
                "warmup_min_ratio": 0.1,
                "cos_min_ratio": 0.01,
                "warmup_type": "linear",
            },
            "0 7e-05 0.00028 0.00049 0.000665686 0.000569539 0.000430604 0.000276396 0.000137461 4.13143e-05 7e-06 7e-06",
        ),
        (
            "OneCycle",
            {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4, "cycle_second_step_size": 3},
            "0.0001 0.000325 0.00055 0.000775 0.001 0.0007 0.0004 0.0001",
        ),
        (
            "LRRangeTest",
            {
                "lr_range_test_min_lr": 1e-4,
                "lr_range_test_step_size": 3,
                "lr_range_test_step_rate": 2.0,
                "lr_range_test_staircase": True,
            },
            "0.0001 0.0001 0.0001 0.0003 0.0003 0.0003 0.0005",
        ),
    )

    @staticmethod
    def optimizer(**settings: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=7e-4, **settings)

    def test_rates_are_deepspeeds(self) -> None:
        self.assertEqual({name for name, _, _ in self.RATES}, set(lr_schedules.VALID_LR_SCHEDULES))
        for name, params, rates in self.RATES:
            optimizer = self.optimizer()
            schedule = getattr(lr_schedules, name)(optimizer, **params)
            for number, rate in enumerate(rates.split(), 1):
                with self.subTest(name, step=number):
                    self.assertAlmostEqual(optimizer.param_groups[0]["lr"], float(rate), delta=1e-5 * float(rate))
                    self.assertEqual(schedule.get_last_lr(), [optimizer.param_groups[0]["lr"]])
                schedule.step()

    def test_the_momentum_of_a_cycle(self) -> None:
        optimizer = self.optimizer(betas=(0.8, 0.999))
        arguments = {"cycle_first_step_size": 4, "cycle_second_step_size": 3, "cycle_min_mom": 0.8, "cycle_max_mom": 0.95}
        schedule = lr_schedules.OneCycle(optimizer, 1e-4, 1e-3, **arguments)
        schedule.step()
        for beta in (0.9125, 0.875, 0.8375, 0.8, 0.85):
            self.assertAlmostEqual(optimizer.param_groups[0]["betas"][0], beta)
            schedule.step()

    def test_a_fraction_of_each_groups_rate(self) -> None:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1e-3, 4e-3)]
        optimizer = torch.optim.SGD(groups)
        schedule = lr_schedules.WarmupCosineLR(optimizer, total_num_steps=8, warmup_num_steps=2)
        schedule.step()
        for _ in range(5):
            schedule.step()
            self.assertAlmostEqual(optimizer.param_groups[1]["lr"] / optimizer.param_groups[0]["lr"], 4)

    def test_state_dict(self) -> None:
        one, other = (lr_schedules.WarmupLR(self.optimizer(), 0, 1e-3, 6) for _ in range(2))
        for _ in range(3):
            one.step()
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        self.assertEqual(one.get_lr(), other.get_lr())
        self.assertEqual(one.state_dict(), {"last_batch_iteration": 2})

    def test_of_an_engine(self) -> None:
        warmup = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 4}}
        of_torch = {"type": "StepLR", "params": {"step_size": 1, "gamma": 0.5}}
        made = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
        for what, after in (
            ({"config": without(scheduler=warmup)}, 5e-4),
            ({"config": without(scheduler=of_torch)}, 2.5e-3),
            ({"config": CONFIG, "lr_scheduler": made}, 2.5e-3),
        ):
            engine, optimizer, _, scheduler = deepspeed.initialize(model=net(), **what)
            self.addCleanup(engine.destroy)
            self.assertIs(scheduler, engine.lr_scheduler)
            self.train(engine, 4)  # two steps
            self.assertAlmostEqual(optimizer.param_groups[0]["lr"], after)

    def test_one_cycle_changes_momentum(self) -> None:
        params = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 3, "cycle_min_mom": 0.5}
        for more in ({}, {"cycle_momentum": False}):
            cycle = {"type": "OneCycle", "params": {**params, **more}}
            engine, *_ = deepspeed.initialize(model=net(), config=without(scheduler=cycle))
            self.addCleanup(engine.destroy)
            plain = net()
            optimizer = torch.optim.AdamW(plain.parameters(), **CONFIG["optimizer"]["params"])
            schedule = lr_schedules.OneCycle(optimizer, **cycle["params"])
            for step in range(10):
                self.assertEqual(engine.get_mom(), [optimizer.param_groups[0]["betas"]])
                self.train(engine, 2, step)
                optimizer.zero_grad()
                rows = data(8, step)
                for at in (0, 4):
                    inputs, targets = (torch.stack(column) for column in zip(*rows[at : at + 4]))
                    (torch.nn.functional.mse_loss(plain(inputs), targets) / 2).backward()
                torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
                optimizer.step()
                schedule.step()
            p, q = plain[3].weight.detach(), engine.module[3].weight.detach()
            self.assertLess(float((p - q).norm() / p.norm()), 1e-5)


class Checkpoints(Engines):
    def test_a_resumed_run_has_the_same_bits(self) -> None:
        config = without(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}})
        where = str(self.scratch / "resumed")
        whole = self.engine(config)
        self.train(whole, 6)
        self.assertTrue(whole.save_checkpoint(where, client_state={"epoch": 3}))
        self.assertEqual((self.scratch / "resumed" / "latest").read_text(), "global_step3")
        rest = self.engine(config, net(9))
        path, client = rest.load_checkpoint(where)
        self.assertEqual((path, client), (os.path.join(where, "global_step3"), {"epoch": 3}))
        self.assertEqual((rest.global_steps, rest.global_samples, rest.get_lr()), (3, 24, whole.get_lr()))
        self.assertEqual(self.train(whole, 6, seed=5), self.train(rest, 6, seed=5))
        for name, value in whole.module.state_dict().items():
            self.assertTrue(torch.equal(value, rest.module.state_dict()[name]), name)

    def test_loads_weights_alone(self) -> None:
        where = str(self.scratch / "weights")
        engine = self.engine(without(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}))
        self.train(engine, 6)
        engine.save_checkpoint(where, client_state={"epoch": 3})
        for asked, steps in (({"load_module_only": True}, 0), ({"load_optimizer_states": False}, 3)):
            other = self.engine(without(optimizer={"type": "SGD", "params": {"lr": 0.1}}))
            self.assertEqual(other.load_checkpoint(where, **asked)[1], {"epoch": 3})
            self.assertEqual(other.global_steps, steps)
            for name, value in engine.module.state_dict().items():
                self.assertTrue(torch.equal(value, other.module.state_dict()[name]), name)
        smaller = self.engine(model=net()[:3])
        with self.assertRaisesRegex(ValueError, "strict=False"):
            smaller.load_checkpoint(where, load_module_only=True)
        smaller.load_checkpoint(where, load_module_only=True, load_module_strict=False)
        self.assertTrue(torch.equal(smaller.module[0].weight, engine.module[0].weight))
        self.train(other, 2)

    def test_a_refused_checkpoint_leaves_the_engine(self) -> None:
        """Damage, a `latest` that is none, and what Engine.save() has made: the run goes on to the bits of one without them."""
        where, plain, engine = str(self.scratch / "refused"), self.engine(), self.engine()
        for one in (plain, engine):
            self.train(one, 2)
            one.save_checkpoint(where)
            Engine.save(one, where, "bare", {"epoch": 1})
            self.train(one, 2, seed=5)
        flip(self.scratch / "refused" / "global_step1" / "strata" / "set.0")
        told = engine.get_lr(), engine.global_steps, engine.micro_steps
        for tag, error, words in (
            ("global_step1", strata.Error, "set.0: checksum mismatch"),
            ("bare", ValueError, r"bare was not made by save_checkpoint\(\): .*Engine.load\(\) reads it"),
            (None, strata.Error, "latest is damaged"),
        ):
            (self.scratch / "refused" / "latest").write_bytes(b"\xff")
            with self.assertRaisesRegex(error, words):
                engine.load_checkpoint(where, tag)
        self.assertEqual((engine.get_lr(), engine.global_steps, engine.micro_steps), told)
        self.assertEqual(self.train(engine, 2, seed=6), self.train(plain, 2, seed=6))
        self.assertEqual(engine._layers.digest(), plain._layers.digest())

    def test_tags_and_parts(self) -> None:
        where = str(self.scratch / "tagged")
        engine = self.engine()
        self.assertEqual(engine.load_checkpoint(where), (None, None))  # no latest
        self.train(engine, 2)
        engine.save_checkpoint(where, tag="first", save_latest=False)
        self.assertFalse(os.path.exists(os.path.join(where, "latest")))
        weights = copy.deepcopy(engine.module.state_dict())
        self.train(engine, 2)
        engine.save_checkpoint(where, "second")
        digests = engine._layers.digest()  # of weights and of state
        self.assertEqual(engine.load_checkpoint(where, "first")[1], {})
        self.assertEqual(engine.global_steps, 1)
        for name, value in engine.module.state_dict().items():
            self.assertTrue(torch.equal(value, weights[name]), name)
        self.train(engine, 2)
        self.assertEqual(engine._layers.digest(), digests)

    def test_beside_training(self) -> None:
        """The configuration's checkpoint.writer.decoupled: `latest` names what is whole."""
        where = str(self.scratch / "beside")
        engine = self.engine(without(checkpoint={"writer": {"type": "fast", "decoupled": True}}))
        for _ in range(3):
            self.train(engine, 2)
            engine.save_checkpoint(where)
        self.assertEqual(engine.load_checkpoint(where)[0], os.path.join(where, "global_step3"))

    def test_where_they_are_made(self) -> None:
        there = self.scratch / "made"
        there.mkdir()
        engine = self.engine(without(strata={"save": str(there)}))
        self.train(engine, 2)
        engine.save_checkpoint(str(self.scratch / "linked"))
        self.assertTrue(any(one.name.startswith("step-") for one in there.iterdir()))
        none = self.engine(without(strata={"save": ""}))
        self.train(none, 2)
        self.assertRaisesRegex(ValueError, "strata.save", none.save_checkpoint, str(self.scratch / "linked"))

    def test_what_a_killed_run_leaves_goes_with_the_next(self) -> None:
        place = self.scratch / "killed"
        place.mkdir()
        script = f"""if True:
            import os, signal, sys
            os.chdir(sys.argv[1])
            import torch
            from strata import deepspeed
            engine = deepspeed.initialize(model=torch.nn.Linear(2, 2), config={CONFIG!r})[0]
            print(*os.listdir())
            os.kill(os.getpid(), signal.SIGKILL if sys.argv[2:] else 0)
        """
        left = python(script, str(place), "kill").stdout.split()
        self.assertEqual((len(left), os.listdir(place)), (1, left))
        there = os.getcwd()
        os.chdir(place)
        self.addCleanup(os.chdir, there)
        engine = self.engine()  # removes what is left, and keeps its own
        own = os.listdir(place)
        self.assertEqual((len(own), own == left), (1, False))
        self.assertIn(own[0], python(script, str(place)).stdout.split())
        engine.destroy()
        self.assertEqual(os.listdir(place), [])

    def test_frozen_parameters(self) -> None:
        def frozen(seed: int) -> torch.nn.Module:
            model = net(seed)
            model[0].requires_grad_(False)
            return model

        where = str(self.scratch / "frozen")
        engine = self.engine(model=frozen(1))
        self.train(engine, 2)
        engine.save_checkpoint(where, "all")
        engine.save_checkpoint(where, "trained", exclude_frozen_parameters=True)
        for tag in ("trained", "all"):
            other = self.engine(model=frozen(9))
            other.load_checkpoint(where, tag)
            for name, value in engine.module.state_dict().items():
                self.assertTrue(torch.equal(value, other.module.state_dict()[name]), name)
        names = set(engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True))
        self.assertEqual(set(engine.module.state_dict()) - names, {"0.weight", "0.bias"})

    def test_weights_alone(self) -> None:
        engine = self.engine()
        self.train(engine, 2)
        self.assertTrue(engine.zero_gather_16bit_weights_on_model_save())
        self.assertTrue(engine.save_16bit_model(str(self.scratch / "weights")))
        saved = torch.load(self.scratch / "weights" / "pytorch_model.bin")
        fresh = net(9)
        fresh.load_state_dict(saved)
        self.assertTrue(torch.equal(fresh[0].weight, engine.module[0].weight))

    def test_as_safetensors(self) -> None:
        """Masters bit for bit; by default what the module computes with; tied and frozen parameters, and buffers."""
        zero = importlib.import_module("strata.deepspeed.utils.zero_to_fp32")
        for number, enabled in enumerate((False, True)):
            model = net()
            model.add_module("tied", torch.nn.Linear(6, 16))
            model.tied.weight = model[0].weight
            model.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.0)))  # of no dimension
            model.forward = lambda x, model=model: model[3](model[2](model[1](model[0](x))))
            model[3].bias.requires_grad_(False)
            where, out = str(self.scratch / f"masters{number}"), self.scratch / f"out{number}"
            engine = self.engine(without(bf16={"enabled": enabled}), model)
            inputs = torch.randn(4, 6, dtype=torch.bfloat16 if enabled else torch.float32)
            for _ in range(4):
                engine.backward(engine(inputs).float().square().mean())
                engine.step()
            engine.save_checkpoint(where)
            there = model.state_dict()
            masters = zero.get_fp32_state_dict_from_zero_checkpoint(where)
            self.assertEqual(list(masters), list(there))
            for index, kept in enumerate(engine._kept):
                wanted = torch.empty(kept.parameter.shape)
                engine._layers.read(index, "WEIGHT", wanted.data_ptr())
                self.assertTrue(torch.equal(masters[kept.name], wanted), kept.name)
            for dtype, wanted in ((None, there), ("fp32", masters)):
                strata.export(where, out, dtype=dtype, overwrite=dtype is not None)
                found = read_safetensors(out / "model.safetensors")
                self.assertEqual(found.keys(), wanted.keys())
                for name, value in wanted.items():
                    self.assertEqual((found[name].dtype, found[name].shape), (value.dtype, value.shape), name)
                    self.assertTrue(torch.equal(found[name], value), name)
            again = zero.load_state_dict_from_zero_checkpoint(net(9), where)
            self.assertTrue(torch.equal(again[3].bias, masters["3.bias"]))
            zero.convert_zero_checkpoint_to_fp32_state_dict(where, str(out), exclude_frozen_parameters=True)
            self.assertEqual(masters.keys() - torch.load(out / "pytorch_model.bin").keys(), {"3.bias"})
            self.assertRaisesRegex(FileExistsError, "overwrite", strata.export, where, out)
            done = python_module("strata", "export", where, "--out", str(out / "program"), "--dtype", "bf16")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(read_safetensors(out / "program" / "model.safetensors")["0.weight"].dtype, torch.bfloat16)
        self.assertRaisesRegex(ValueError, "fp8", strata.export, where, out, dtype="fp8")
        self.assertRaisesRegex(
            FileNotFoundError, "no checkpoint never", zero.get_fp32_state_dict_from_zero_checkpoint, where, "never"
        )
        damaged = self.scratch / "masters1" / "global_step2" / "strata" / "set.0"
        data = bytearray(damaged.read_bytes())
        data[100] ^= 1
        damaged.write_bytes(data)
        self.assertRaisesRegex(strata.Error, "checksum", zero.get_fp32_state_dict_from_zero_checkpoint, where)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
    made = {}
    for name, told in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = (begin + at for at in told["data_offsets"])
            made[name] = torch.frombuffer(bytearray(data[first:end]), dtype=types[told["dtype"]]).view(told["shape"])
    return made


class Names(Engines):
    def test_what_is_known_of_a_parameter(self) -> None:
        from strata.deepspeed import utils

        engine, model = self.engine(without(bf16={"enabled": True})), None
        model = engine.module
        p = model[0].weight
        self.assertIsNone(utils.safe_get_full_grad(p))
        inputs = torch.randn(4, 6, dtype=torch.bfloat16)
        for _ in range(2):
            engine.backward(engine(inputs).float().square().mean())
            engine.step()
        self.assertTrue(torch.equal(utils.safe_get_full_fp32_param(p).to(torch.bfloat16), p))
        engine.backward(engine(inputs).float().square().mean())
        plain = copy.deepcopy(model)
        (plain(inputs).float().square().mean() / 2).backward()
        self.assertTrue(torch.allclose(utils.safe_get_full_grad(p), plain[0].weight.grad.float(), rtol=0.02, atol=1e-4))
        self.assertGreater(utils.safe_get_full_optimizer_state(p, "exp_avg_sq").sum().item(), 0)  # within a step
        engine.step()
        engine.backward(engine(inputs).float().square().mean())
        engine.step()
        utils.safe_set_full_fp32_param(p, torch.ones(16, 6))
        utils.safe_set_full_optimizer_state(p, torch.full((16, 6), 0.5), "exp_avg")
        self.assertTrue(bool((p == 1).all()))
        self.assertEqual(utils.safe_get_full_optimizer_state(p, "exp_avg").unique().tolist(), [0.5])
        self.assertIsNone(utils.safe_get_full_fp32_param(net()[0].weight))
        self.assertRaisesRegex(ValueError, "of no engine", utils.safe_set_full_fp32_param, net()[0].weight, p)
        self.assertRaisesRegex(ValueError, "exp_max", utils.safe_get_full_optimizer_state, p, "exp_max")
        self.assertRaises(AttributeError, lambda: utils.safe_set_full_grad)

    def test_a_traceback_of_the_scripts_own(self) -> None:
        script = self.scratch / "fails.py"
        script.write_text(
            "import torch, deepspeed\ndeepspeed.initialize(model=torch.nn.Linear(2, 2), config={'train_batch_size': 0})\n"
        )
        told = python_module("strata.deepspeed", str(script)).stderr.strip().splitlines()
        self.assertEqual(len(told), 4)
        self.assertIn("fails.py", told[1])
        self.assertIn("train_batch_size", told[-1])
        self.assertFalse(any("strata/deepspeed" in line for line in told))

    def test_zero_contexts(self) -> None:
        with deepspeed.zero.Init(config_dict_or_path=CONFIG):
            model = net()
        engine = self.engine(model=model)
        with deepspeed.zero.GatheredParameters(model.parameters(), modifier_rank=0):
            self.assertEqual(model[0].weight.shape, (16, 6))
        with deepspeed.zero.GatheredParameters(model[0].weight, fwd_module=model):
            pass
        self.train(engine, 2)

    def test_optimizers_of_ops(self) -> None:
        pairs = (
            (
                lambda weights: DeepSpeedCPUAdam(weights, lr=1e-2),
                lambda weights: torch.optim.AdamW(weights, 1e-2, weight_decay=0),
            ),
            (
                lambda weights: FusedAdam(weights, lr=1e-2, adam_w_mode=False, weight_decay=0.1),
                lambda weights: torch.optim.Adam(weights, 1e-2, weight_decay=0.1),
            ),
            (lambda weights: DeepSpeedCPUAdagrad(weights), lambda weights: torch.optim.Adagrad(weights)),
            (lambda weights: FusedLion(weights), lambda weights: DeepSpeedCPULion(weights)),
        )
        for makes in pairs:
            weights = [torch.nn.Parameter(torch.linspace(-1, 1, 5)) for _ in makes]
            optimizers = [make([weight]) for make, weight in zip(makes, weights)]
            with self.subTest(type(optimizers[0]).__name__):
                for _ in range(3):
                    for weight, optimizer in zip(weights, optimizers):
                        (weight**3).sum().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                self.assertTrue(torch.allclose(*weights, rtol=1e-6, atol=1e-7))

    def test_files_of_ops(self) -> None:
        builder = deepspeed.ops.aio.AsyncIOBuilder()
        self.assertTrue(builder.is_compatible() and deepspeed.ops.__compatible_ops__[builder.NAME])
        handle, file, back = builder.load().aio_handle(1 << 20, 8), str(self.scratch / "file"), bytearray(6)
        self.addCleanup(handle.close)
        handle.sync_pwrite(bytearray(b"strata"), file)
        handle.sync_pread(back, file)
        self.assertEqual(back, b"strata")

    def test_the_rest(self) -> None:
        accelerator = deepspeed.accelerator.get_accelerator()
        self.assertEqual(accelerator.device_name(), "cuda" if torch.cuda.is_available() else "cpu")
        self.assertEqual(deepspeed.comm.get_rank(), 0)
        deepspeed.init_distributed()
        self.assertTrue(deepspeed.comm.is_initialized())
        deepspeed.comm.barrier()
        self.assertEqual(deepspeed.comm.ReduceOp.SUM, torch.distributed.ReduceOp.SUM)
        self.assertEqual(deepspeed.utils.set_z3_leaf_modules(net(), [torch.nn.GELU])[0].__class__, torch.nn.GELU)
        with self.assertLogs("DeepSpeed", "INFO") as told:
            deepspeed.utils.log_dist("heard", ranks=[0])
            deepspeed.utils.logging.log_dist("not heard", ranks=[1])
        self.assertEqual(len(told.output), 1)
        view = torch.zeros(100)[:2]
        copied = importlib.import_module("strata.deepspeed.checkpoint.utils").clone_tensors_for_torch_save({"a": [view]})
        self.assertEqual(copied["a"][0].untyped_storage().nbytes(), 8)

    def test_installed(self) -> None:
        done = python(
            "import strata.deepspeed as ours; ours.install(); ours.install()\n"
            "import deepspeed, deepspeed.comm as dist, importlib.metadata, importlib.util\n"
            "from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus\n"
            "from deepspeed.runtime.engine import DeepSpeedEngine\n"
            "from deepspeed.ops.adam import DeepSpeedCPUAdam\n"
            "assert deepspeed is ours and DeepSpeedEngine is ours.DeepSpeedEngine and dist is ours.comm\n"
            "assert importlib.metadata.version('deepspeed') == deepspeed.__version__ == '0.19.8'\n"
            "assert importlib.metadata.metadata('deepspeed')['Name'] == 'deepspeed'\n"
            "assert importlib.util.find_spec('deepspeed') is not None\n"
            "print(importlib.metadata.version('torch'))"
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.strip().split("+")[0], torch.__version__.split("+")[0])

    def test_not_after_deepspeed_itself(self) -> None:
        with mock.patch.dict(sys.modules, {"deepspeed": mock.Mock(__file__="/there/deepspeed/__init__.py")}):
            self.assertRaisesRegex(ImportError, "imported from /there", deepspeed.install)


class Wrong(Engines):
    def uses(self) -> tuple[tuple[Callable[[], Any], type[Exception], str], ...]:
        engine, model, text = self.engine(), net(), self.scratch / "list.json"
        text.write_text("[1]")
        (self.scratch / "broken.json").write_text("{'a'")
        self.train(engine, 2)
        engine.save_checkpoint(str(self.scratch / "whole"))
        ended = self.engine()
        ended.destroy()
        forward = deepspeed.initialize(model=net(), config=without("optimizer"))[0]
        other = torch.nn.Linear(2, 2)
        rows = torch.zeros(4, 6)

        def start(**what: Any) -> Callable[[], Any]:
            return lambda: deepspeed.initialize(**{"model": model, "config": CONFIG, **what})

        def schedule(name: str, *values: Any, **params: Any) -> Callable[[], Any]:
            return lambda: getattr(lr_schedules, name)(Schedules.optimizer(), *values, **params)

        def inside() -> None:
            with engine.no_sync():
                engine.step()

        def rule(**what: Any) -> Any:
            return start(config=without(optimizer={"type": "AdamW", **what}))

        return (
            (lambda: deepspeed.initialize(config=CONFIG), TypeError, "torch.nn.Module"),
            (start(model=[model]), TypeError, "torch.nn.Module"),
            (start(model=engine), TypeError, "engine already"),
            (start(config=None), ValueError, "no configuration"),
            (start(config=3), TypeError, "int"),
            (start(config=str(self.scratch / "none.json")), FileNotFoundError, "none.json"),
            (start(config=str(self.scratch / "broken.json")), strata.Error, "broken.json"),
            (start(config=str(text)), TypeError, "object"),
            (start(mpu=object()), NotImplementedError, "parallelism"),
            (start(mesh_param=(1, 2)), NotImplementedError, "parallelism"),
            (lambda: forward.step(), RuntimeError, "no optimizer"),
            (lambda: forward.backward(torch.zeros(())), RuntimeError, "no optimizer"),
            (lambda: forward.save_checkpoint("x"), RuntimeError, "no optimizer"),
            (start(config=without(train_batch_size=7)), strata.Error, "train_batch_size"),
            (start(config=without(train_batch_size="many")), strata.Error, "train_batch_size"),
            (start(config=without(gradient_clipping=-1)), strata.Error, "gradient_clipping"),
            (start(config=without(bf16={"enabled": True}, fp16={"enabled": True})), strata.Error, "bf16"),
            (start(config=without(zero_optimization={"stage": 4})), strata.Error, "stage"),
            (start(config=without(zero_optimization={"offload_optimizer": {"device": "disk"}})), strata.Error, "device"),
            (rule(type="OneBitAdam"), strata.Error, "OneBitAdam"),
            (rule(params={"max_grad_norm": 1}), strata.Error, "gradient_clipping"),
            (rule(params={"lr": -1}), strata.Error, "lr"),
            (start(config=without(scheduler={"type": "Sawtooth"})), ValueError, "Sawtooth"),
            (start(model_parameters=other.parameters()), ValueError, "none of the model's"),
            (schedule("WarmupLR", colour=1), strata.Error, "colour"),
            (schedule("WarmupLR", 0, 1, 2, "log", 5), TypeError, "warmup_type"),
            (schedule("WarmupDecayLR"), strata.Error, "steps"),
            (schedule("WarmupLR", warmup_max_lr=[1e-3, 1e-4]), strata.Error, "warmup_max_lr"),
            (lambda: engine.backward(1.0), TypeError, "loss"),
            (lambda: engine.backward(engine(rows)), TypeError, "one element"),
            (inside, RuntimeError, "no_sync"),
            (lambda: engine.save_checkpoint(""), ValueError, "directory"),
            (
                lambda: engine.load_checkpoint(str(self.scratch / "whole"), "missing"),
                FileNotFoundError,
                "there are global_step1",
            ),
            (
                lambda: engine.load_checkpoint(str(self.scratch), "missing"),
                FileNotFoundError,
                "missing: there are whole/global_step1",
            ),
            (lambda: engine.load_checkpoint("x", custom_load_fn=print), NotImplementedError, "custom_load_fn"),
            (lambda: ended.step(), RuntimeError, "destroyed"),
            (lambda: ended.backward(torch.zeros(())), RuntimeError, "destroyed"),
            (lambda: ended.load_checkpoint(str(self.scratch / "whole")), RuntimeError, "destroyed"),
            (lambda: ended.save_16bit_modell, AttributeError, "DeepSpeedEngine.save_16bit_modell"),
            (start(model=engine.module[0]), RuntimeError, "^weight is in the pages of another engine"),
            (lambda: ended.save_checkpoint(str(self.scratch / "late")), RuntimeError, "destroyed"),
            (lambda: self.engine(model=other).load_checkpoint(str(self.scratch / "whole")), strata.Error, "another model"),
            (lambda: DeepSpeedCPUAdam(model.parameters(), amsgrad=True), NotImplementedError, "amsgrad"),
            (lambda: FusedAdam(model.parameters(), bias_correction=False), NotImplementedError, "bias_correction"),
            (lambda: DeepSpeedCPUAdagrad(model.parameters(), amsgrad=True), NotImplementedError, "amsgrad"),
            (lambda: deepspeed.moe, AttributeError, "deepspeed.moe"),
            (lambda: deepspeed.ops.sparse_attention, AttributeError, "deepspeed.ops.sparse_attention"),
            (lambda: deepspeed.zero.TiledLinear, AttributeError, "deepspeed.(runtime.)?zero.TiledLinear"),
            (lambda: deepspeed.comm.fly, AttributeError, "deepspeed.comm.fly"),
            (lambda: deepspeed.accelerator.get_accelerator().fly, AttributeError, "fly"),
            (lambda: deepspeed.utils.groups, AttributeError, "deepspeed.utils.groups"),
            (lambda: deepspeed.utils.set_z3_leaf_modules(model, ["Mixer"]), ValueError, "Mixer"),
        )

    def test_each_raises_and_says_why(self) -> None:
        uses = self.uses()
        self.assertGreaterEqual(len(uses), 40)
        for number, (use, kind, words) in enumerate(uses):
            with self.subTest(number, words=words), self.assertRaisesRegex(kind, words):
                use()

    def test_names_that_are_absent_cannot_be_imported(self) -> None:
        for line in ("import deepspeed.moe.layer", "from deepspeed.pipe import PipelineModule", "from deepspeed import pipe"):
            done = python(f"import strata.deepspeed; strata.deepspeed.install()\n{line}")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr.strip().splitlines()[-1], "Error: .*(deepspeed.moe|pipe)")


if __name__ == "__main__":
    unittest.main()
