"""strata.torch.Engine beside PyTorch.  Skipped without torch; what needs transformers without that."""

from __future__ import annotations

import copy
import errno
import gc
import importlib.util
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch
from torch.nn import functional

import strata
from strata import optim
from strata.torch import Engine

from .common import open_files, python, threads

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
}
SINGLE = {**CONFIG, "train_batch_size": 1, "gradient_accumulation_steps": 1}


def net() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers: tuple[torch.nn.Module, ...] = (
        *(torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        *(torch.nn.Conv2d(8, 4, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(4 * 7 * 7, 64)),
        *(torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 5)),
    )
    return torch.nn.Sequential(*layers)


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(step)
    images, labels = torch.randn(6, 3, 16, 16, generator=made), torch.randint(0, 5, (6,), generator=made)
    kind = next(model.parameters()).dtype
    return functional.cross_entropy(model(images.to(kind)).float(), labels)


def tier(device: str, directory: str) -> dict[str, Any]:
    offload = {"device": device, **({"nvme_path": directory} if device == "nvme" else {})}
    return {"zero_optimization": {"stage": 2, "offload_optimizer": offload}} if device != "none" else {}


def train(engine: Engine, steps: range, **backward: Any) -> list[float]:
    """Steps of as many micro-batches as the configuration says."""
    losses = []
    for step in steps:
        for micro in range(engine.accumulation):
            loss = loss_of(engine, engine.accumulation * step + micro)
            engine.backward(loss, **backward)
            made = engine.step()
        assert made is not None
        losses.append(made.loss)
    return losses


def theirs(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, micros: int = 2) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        parts = [loss_of(model, micros * step + micro) / micros for micro in range(micros)]
        for part in parts:
            part.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return losses


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)


class BesidePyTorch(unittest.TestCase):
    def test_free_runs_have_the_same_losses(self) -> None:
        a, b = net(), net()
        wanted = theirs(a, adamw(a), range(20))
        for one, other in zip(train(Engine(b, CONFIG), range(20)), wanted, strict=True):
            self.assertAlmostEqual(one / other, 1, delta=1e-4)
        self.assertTrue(all(p.grad is None for p in b.parameters()))

    def test_the_same_gradients_give_the_same_weights(self) -> None:
        a, b = net(), net()
        engine, optimizer = Engine(b, SINGLE), adamw(a)
        for step in range(50):
            optimizer.zero_grad()
            loss_of(a, step).backward()
            grads = [p.grad.clone() for p in a.parameters()]
            norm = torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
            optimizer.step()
            engine.backward(sum((q * g).sum() for q, g in zip(b.parameters(), grads, strict=True)))
            self.assertAlmostEqual(engine.step().grad_norm / norm.item(), 1, delta=1e-5)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            self.assertLess(float((p - q).detach().norm() / p.detach().norm()), 1e-6)

    def test_every_tier_has_the_same_bits(self) -> None:
        for precision in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}):
            made = []
            for device in ("none", "cpu", "nvme"):
                with tempfile.TemporaryDirectory() as scratch:
                    engine = Engine(net(), {**CONFIG, **precision, **tier(device, scratch)})
                    losses = train(engine, range(6))
                    before = [p.detach().clone() for p in engine.module.parameters()]
                    engine.flush()
                    self.assertTrue(equal(engine.module, torch.nn.ParameterList(before)))  # nothing was pending
                    engine.destroy()
                made.append((losses, engine.module))
            with tempfile.TemporaryDirectory() as scratch:
                engine = Engine(net(), {**CONFIG, **precision, **tier("nvme", scratch)}, overlap=True)
                losses = train(engine, range(3))
                engine.module.eval()
                with torch.no_grad():
                    loss_of(engine, 100)  # makes the update
                engine.module.train()
                losses += train(engine, range(3, 6))
                known = pickle.loads(pickle.dumps(engine.module.state_dict()))
                engine.destroy()
                for name, value in engine.module.state_dict().items():
                    self.assertTrue(torch.equal(value, known[name]))
                made.append((losses, engine.module))
            for losses, module in made[1:]:
                self.assertEqual(losses, made[0][0])
                self.assertTrue(equal(module, made[0][1]))


class Module(unittest.TestCase):
    def test_it_stays_a_module(self) -> None:
        module = net()
        module[5].weight = torch.nn.Parameter(module[5].weight.detach())
        engine = Engine(module, SINGLE)
        train(engine, range(1))
        self.assertTrue(equal(copy.deepcopy(module), module))
        self.assertTrue(equal(pickle.loads(pickle.dumps(module)), module))
        file = io.BytesIO()
        torch.save(module[0].state_dict(), file)
        self.assertLess(len(file.getvalue()), 4000)  # not the whole page
        self.assertEqual(module[0].weight.untyped_storage().nbytes(), 4 * module[0].weight.numel())
        module.mark = "a mark"
        self.assertEqual(engine.mark, "a mark")
        kept = [p.detach().clone() for p in module.parameters()]
        alias = module[0].weight.detach()
        engine.destroy()
        engine.destroy()
        del engine
        self.assertTrue(equal(module, torch.nn.ParameterList(kept)))
        self.assertTrue(torch.equal(alias, kept[0]))
        loss_of(module, 0).backward()
        self.assertIsNotNone(module[0].weight.grad)

    def test_an_engine_that_is_dropped_leaves_nothing(self) -> None:
        train(Engine(net(), SINGLE), range(1))  # PyTorch's threads are there
        while gc.collect():  # engines of other tests
            pass
        before = threads(), open_files()
        with tempfile.TemporaryDirectory() as scratch:
            module = net()
            engine = Engine(module, {**SINGLE, **tier("nvme", scratch)}, overlap=True)
            train(engine, range(2))
            hidden = copy.deepcopy(module)
            del engine
            self.assertLessEqual(threads(before[0]), before[0])
            self.assertEqual((open_files() - before[1], os.listdir(scratch)), (set(), []))
        self.assertFalse(equal(module, hidden))  # the update that was pending is made
        loss_of(module, 0).backward()
        self.assertIsNotNone(module[5].weight.grad)
        with self.assertRaisesRegex(ValueError, "none of the model's"):
            Engine(net(), SINGLE, parameters=net().parameters())
        with self.assertRaises(strata.Error):
            Engine(net(), {**SINGLE, "no_such_key": 1})
        self.assertLessEqual(threads(before[0]), before[0])

    def test_what_is_changed_later_is_refused_by_name(self) -> None:
        def thawed(m: Any) -> None:
            m[0].weight.requires_grad_(True)

        def assigned(m: Any) -> None:
            m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True)

        def replaced(m: Any) -> None:
            m[8] = torch.nn.Linear(64, 7)

        def moved(m: Any) -> None:
            m[5].weight.data = m[5].weight.data.clone()

        def added(m: Any) -> None:
            m[5].register_parameter("extra", torch.nn.Parameter(torch.zeros(3)))

        for change, named in (
            *((thawed, "0.weight"), (assigned, "0.weight"), (replaced, "8.weight"), (moved, "5.weight")),
            *((added, "5.extra"), (lambda m: m.half(), "0.weight"), (lambda m: loss_of(m, 0).backward(), "1.weight")),
        ):
            module = net()
            module[0].weight.requires_grad_(False)
            engine = Engine(module, SINGLE)
            train(engine, range(1))
            module.to("cpu")
            change(module)
            with self.assertRaisesRegex(RuntimeError, f"^{named} "):
                engine.backward(sum(p.float().sum() for p in module.parameters() if p.requires_grad))


class Steps(unittest.TestCase):
    """What loops do beside forward, backward, step."""

    def beside(self, ours: Any, wanted: Any, make: Any = net, config: Any = CONFIG, delta: float = 1e-5) -> Engine:
        """Train two modules, each by its function; the weights are compared."""
        a, b = make(), make()
        engine = Engine(b, config)
        optimizer = adamw(a)
        for step in range(4):
            ours(engine, step)
            optimizer.zero_grad()
            wanted(a, step)
            torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
            optimizer.step()
        for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
            self.assertLess(float((p - q).detach().norm()), delta * float(p.detach().norm()) + 1e-7, name)
        return engine

    def test_evaluation_between_micro_batches(self) -> None:
        def ours(engine: Engine, step: int) -> None:
            for micro in range(2):
                engine.backward(loss_of(engine, 2 * step + micro))
                engine.eval()
                with torch.no_grad():
                    loss_of(engine, 100)
                engine.train()
                engine.step()

        self.beside(ours, lambda a, step: [(loss_of(a, 2 * step + m) / 2).backward() for m in range(2)])

    def test_several_backwards_in_a_micro_batch(self) -> None:
        def ours(engine: Engine, step: int) -> None:
            for micro in range(2):
                loss = loss_of(engine, 2 * step + micro)
                engine.backward(loss, retain_graph=True)
                engine.backward(0.5 * loss)
                engine.step()

        self.beside(ours, lambda a, step: [(1.5 * loss_of(a, 2 * step + m) / 2).backward() for m in range(2)])

    def test_the_caller_says_where_a_step_ends(self) -> None:
        def ours(engine: Engine, step: int) -> None:
            count = (1, 2, 3, 2)[step]  # fewer and more micro-batches than the configuration says
            for micro in range(count):
                engine.boundary = micro + 1 == count
                engine.backward(loss_of(engine, 10 * step + micro), divide=False)
                if engine.boundary:
                    self.assertIsNotNone(engine.step())

        self.beside(ours, lambda a, step: [loss_of(a, 10 * step + m).backward() for m in range((1, 2, 3, 2)[step])])

    def test_a_module_that_is_called_twice_and_tied_weights(self) -> None:
        class Twice(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(3)
                self.table = torch.nn.Embedding(11, 32)
                self.inner = torch.nn.Linear(32, 32)
                self.head = torch.nn.Linear(32, 11, bias=False)
                self.head.weight = self.table.weight
                self.unused = torch.nn.Linear(3, 3)
                self.frozen = torch.nn.Linear(32, 32).requires_grad_(False)
                self.register_buffer("count", torch.zeros(()))

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                self.count += 1
                return self.head(self.frozen(self.inner(self.inner(self.table(ids)).relu())))

        ids = torch.arange(11)

        def loss(model: torch.nn.Module) -> torch.Tensor:
            return functional.cross_entropy(model(ids), ids)

        def ours(engine: Engine, step: int) -> None:
            engine.backward(loss(engine))
            engine.step()

        def wanted(a: torch.nn.Module, step: int) -> None:
            loss(a).backward()
            for p in a.parameters():  # one without a gradient counts as zero
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)

        engine = self.beside(ours, wanted, Twice, SINGLE)
        self.assertIs(engine.module.head.weight, engine.module.table.weight)
        self.assertEqual(float(engine.count), 4)

    def test_checkpointing_autocast_and_compile(self) -> None:
        from torch.utils.checkpoint import checkpoint

        def run(model: torch.nn.Module, step: int, reentrant: bool) -> torch.Tensor:
            made = torch.Generator().manual_seed(step)
            x = torch.randn(8, 32, generator=made).requires_grad_(True)
            for layer in model.children():
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x.square().mean()

        def mlp() -> torch.nn.Sequential:
            torch.manual_seed(2)
            return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
                                         for _ in range(3)))  # fmt: skip

        for reentrant in (False, True):
            self.beside(
                lambda e, s, r=reentrant: (e.backward(run(e.module, s, r)), e.step()),
                lambda a, s: run(a, s, False).backward(),
                *(mlp, SINGLE),
            )

        def cast(model: torch.nn.Module, step: int) -> torch.Tensor:
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).float().square().mean()

        self.beside(lambda e, s: (e.backward(cast(e, s)), e.step()), lambda a, s: cast(a, s).backward(), mlp, SINGLE)
        compiled: list[Any] = []

        def by_compiler(engine: Engine, step: int) -> None:
            if not compiled:
                compiled.append(torch.compile(engine, backend="aot_eager"))
                engine.module.compile(backend="aot_eager")
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
            engine.backward(compiled[0](x).square().mean())
            engine.step()

        def plain(a: torch.nn.Module, step: int) -> None:
            a(torch.randn(8, 32, generator=torch.Generator().manual_seed(step))).square().mean().backward()

        self.beside(by_compiler, plain, mlp, SINGLE)

    def test_groups_schedulers_and_an_optimizer_of_ones_own(self) -> None:
        def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
            tensors = list(model.parameters())
            return [
                {"params": [p for p in tensors if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in tensors if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3},
            ]

        for kind in (torch.optim.AdamW, optim.AdamW, None):
            a, b = net(), net()
            optimizer = torch.optim.AdamW(groups(a), lr=1e-3, betas=(0.8, 0.99))
            wanted = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
            if kind is None:
                config = {**CONFIG, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.99]}}}
                engine = Engine(b, config, parameters=groups(b))
                scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(engine.optimizer, 10)
            else:
                own = kind(groups(b), lr=1e-3, betas=(0.8, 0.99))
                engine = Engine(b, CONFIG, optimizer=own)
                scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(own, 10)
            for step in range(10):
                train(engine, range(step, step + 1))
                scheduler.step()
                theirs(a, optimizer, range(step, step + 1))
                wanted.step()
            for p, q in zip(a.parameters(), b.parameters(), strict=True):
                self.assertLess(float((p - q).detach().norm()), 2e-5 * float(p.detach().norm()))
            self.assertEqual(engine.optimizer.param_groups[1]["lr"], optimizer.param_groups[1]["lr"])
            saved = engine.optimizer.state_dict()
            engine.optimizer.param_groups[0]["lr"] = 7.0
            engine.optimizer.load_state_dict(saved)
            self.assertEqual(engine.optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["lr"])
        with self.assertRaisesRegex(ValueError, "amsgrad"):
            Engine(net(), CONFIG, optimizer=torch.optim.AdamW(net().parameters(), amsgrad=True))

    def test_masters_follow_weights_that_are_loaded(self) -> None:
        for precision in ({}, {"bf16": {"enabled": True}}):
            engine, other = Engine(net(), {**CONFIG, **precision}), Engine(net(), {**CONFIG, **precision})
            train(engine, range(3))
            train(other, range(3))
            engine.load_state_dict(engine.state_dict())  # the same bits: masters stay
            train(engine, range(3, 5))
            train(other, range(3, 5))
            self.assertTrue(equal(engine, other))
            with torch.no_grad():
                engine.module[5].weight.fill_(0.25)
            engine.module[8].bias.data.fill_(0.5)
            engine.follow()
            engine.optimizer.param_groups[0]["lr"] = 0.0
            train(engine, range(5, 6))
            self.assertTrue(bool((engine.module[5].weight == 0.25).all() and (engine.module[8].bias == 0.5).all()))

    def test_an_overflow_is_skipped_and_the_scale_falls(self) -> None:
        fp16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}}
        engine = Engine(net(), {**SINGLE, **fp16})
        self.assertEqual(engine.loss_scale, 256)
        train(engine, range(1))
        self.assertEqual((engine.loss_scale, engine.overflow), (256, False))
        before = [p.detach().clone() for p in engine.module.parameters()]
        engine.backward(loss_of(engine, 1) * float("inf"))
        step = engine.step()
        self.assertEqual((step.skipped, step.loss_scale, engine.optimizer.loss_scale), (True, 256, 128))  # the next step's
        self.assertTrue(engine.optimizer.overflow and equal(engine.module, torch.nn.ParameterList(before)))
        train(engine, range(2, 3))
        self.assertEqual((engine.loss_scale, engine.overflow), (128, False))

    def test_clipping_is_never_lost(self) -> None:
        engine, clip = Engine(net(), SINGLE), torch.nn.utils.clip_grad_norm_
        engine.backward(loss_of(engine, 0))
        with self.assertRaisesRegex(ValueError, "gradient_clipping 1: set that"):
            clip(engine.module.parameters(), 0.5)
        clip(engine.module.parameters(), 1.0)
        norm = engine.step().grad_norm
        self.assertAlmostEqual(float(clip(engine.module[5].weight, max_norm=1.0)), norm, places=5)
        other = net()
        loss_of(other, 0).backward()
        self.assertAlmostEqual(float(clip(other.parameters(), 1.0)) / norm, 1, places=4)
        engine.destroy()
        loss_of(engine.module, 0).backward()
        self.assertGreater(float(clip(engine.module.parameters(), 0.5)), 0)

    def test_a_flush_within_a_step_says_what_it_drops(self) -> None:
        engine = Engine(net(), CONFIG)
        engine.backward(loss_of(engine, 0))
        with self.assertLogs("strata", "WARNING") as lines:
            engine.flush()
        self.assertIn("the 1 micro-batches of the step under way are dropped", lines.output[0])
        self.assertEqual(len(train(engine, range(1))), 1)


@unittest.skipIf(importlib.util.find_spec("transformers") is None, "transformers is not installed")
class Transformers(unittest.TestCase):
    """Tiny models of transformers, free running."""

    def models(self) -> dict[str, Any]:
        import transformers

        small = {
            "vocab_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "hidden_size": 64,
            "intermediate_size": 128,
        }
        gpt2 = {
            "vocab_size": 96,
            "n_layer": 3,
            "n_head": 4,
            "n_embd": 64,
            "n_positions": 32,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        t5 = {"vocab_size": 96, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "dropout_rate": 0}
        torch.manual_seed(4)
        return {
            "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
            "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, num_key_value_heads=2)),
            "t5": transformers.T5ForConditionalGeneration(transformers.T5Config(**t5, decoder_start_token_id=0)),
        }

    def loss(self, model: Any, step: int, kind: str = "gpt2") -> Any:
        ids = torch.randint(1, 96, (2, 24), generator=torch.Generator().manual_seed(step % 4))
        if kind != "t5":
            return model(input_ids=ids, labels=ids, use_cache=False).loss
        return model(input_ids=ids, labels=ids).loss

    def test_losses_are_those_of_pytorch(self) -> None:
        for kind, model in self.models().items():
            with self.subTest(kind=kind):
                engine, optimizer = Engine(copy.deepcopy(model), SINGLE), adamw(model)
                self.assertGreater(len({t.layer for t in engine._layers.tensors}), 2)
                for step in range(12):
                    optimizer.zero_grad()
                    wanted = self.loss(model, step, kind)
                    wanted.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    engine.backward(self.loss(engine, step, kind))
                    self.assertAlmostEqual(engine.step().loss / wanted.item(), 1, delta=1e-4)

    def test_saved_and_changed_models(self) -> None:
        import transformers

        model = self.models()["gpt2"]
        engine = Engine(model, SINGLE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer ones have another name for it
            engine.gradient_checkpointing_enable({"use_reentrant": True})
        engine.enable_input_require_grads()
        engine.backward(self.loss(engine, 0))
        engine.step()
        with tempfile.TemporaryDirectory() as scratch:
            engine.save_pretrained(scratch)
            size = (Path(scratch) / "model.safetensors").stat().st_size
            self.assertLess(size, 4.2 * sum(p.numel() for p in model.parameters()) + 20000)
            again = transformers.GPT2LMHeadModel.from_pretrained(scratch)
        self.assertTrue(equal(again, model))
        self.assertIs(model.lm_head.weight, model.transformer.wte.weight)
        model.resize_token_embeddings(100)
        with self.assertRaisesRegex(RuntimeError, "^transformer.wte.weight lies elsewhere .* resizing"):
            engine.backward(self.loss(engine, 0))


class Ends(unittest.TestCase):
    """Steps that are given up, saves, resumes, ranks."""

    def test_an_error_in_backward_drops_the_step(self) -> None:
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                raise KeyboardInterrupt

        engine, other = Engine(net(), CONFIG), Engine(net(), CONFIG)
        for each in (engine, other):
            train(each, range(1))
        buffers = copy.deepcopy(dict(engine.module.named_buffers()))
        engine.backward(loss_of(engine, 50))
        with self.assertRaises(KeyboardInterrupt):
            made = torch.Generator().manual_seed(1)
            hidden = Fails.apply(engine.module[5](torch.randn(2, 196, generator=made)))
            engine.backward(engine.module[8](engine.module[6](hidden)).sum())
        for name, buffer in engine.module.named_buffers():
            buffer.copy_(buffers[name])
        self.assertTrue(all(p.grad is None for p in engine.module.parameters()))
        self.assertEqual(train(engine, range(1, 3)), train(other, range(1, 3)))
        self.assertTrue(equal(engine, other))
        self.assertEqual((engine._layers.info.steps, engine._layers.info.skipped_steps), (3, 1))

    def test_ctrl_c_within_a_first_micro_batch_or_a_check(self) -> None:
        engine, other = Engine(net().eval(), CONFIG), Engine(net().eval(), CONFIG)
        with mock.patch("strata.torch.engine.over", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            engine.backward(loss_of(engine, 9))
        for micro in range(2):
            engine.backward(loss_of(engine, micro))
            if micro == 0:
                engine.step()
        with mock.patch("strata.torch.placed.plain", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            engine.step()
        self.assertEqual(train(engine, range(2)), train(other, range(2)))
        self.assertTrue(equal(engine, other))

    def test_no_step_without_the_gradients_that_were_dropped(self) -> None:
        engine = Engine(net(), SINGLE)
        kept = [p.clone() for p in engine.module.parameters()]
        with self.assertRaises(RuntimeError):
            engine.backward(engine(torch.randn(2, 3, 16, 16)))  # no scalar
        with self.assertRaisesRegex(RuntimeError, "was dropped with its gradients"):
            engine.step()
        engine.backward(loss_of(engine, 0))
        engine.flush()
        with self.assertRaisesRegex(RuntimeError, "was dropped with its gradients"):
            engine.step()
        self.assertTrue(all(map(torch.equal, kept, engine.module.parameters())))
        self.assertEqual(len(train(engine, range(1))), 1)

    def test_overlap_waits_before_hooks_that_compute_with_weights(self) -> None:
        places = []
        module = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 4))
        engine = Engine(module, SINGLE, overlap=True)
        with mock.patch.object(Engine, "await_weights", lambda *_: places.append("weights")):
            module.register_forward_pre_hook(lambda *_: places.append("hook"))
            module(torch.randn(2, 4))
        self.assertEqual(places, ["weights", "weights", "hook"])
        kinds = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        self.assertEqual(kinds[:3], ["Hook", "Hook", "SpectralNorm"])
        engine.destroy()

    def test_overlap_waits_for_weights_of_modules_that_are_not_called(self) -> None:
        class Reads(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.layers, self.reads = torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(3)), True

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    x = torch.tanh(functional.linear(x, layer.weight, layer.bias) if self.reads else layer(x))
                return x

        def step(engine: Engine, seed: int) -> None:
            engine.backward((engine(torch.randn(4, 300, generator=torch.Generator().manual_seed(seed))) ** 2).mean())
            engine.step()

        one, other, late = Engine(Reads(), SINGLE), Engine(Reads(), SINGLE, overlap=True), Engine(Reads(), SINGLE, overlap=True)
        late.module.reads = False
        for seed in range(4):
            step(one, seed)
            step(other, seed)
        other.flush()
        self.assertTrue(equal(one, other))
        step(late, 0)
        late.module.reads = True
        with self.assertRaisesRegex(RuntimeError, "was read while it was updated"):
            step(late, 1)
        for seed in range(1, 4):
            step(late, seed)
        late.flush()
        self.assertTrue(equal(one, late))

    def test_an_exit_within_a_step_leaves_nothing(self) -> None:
        script = "import sys, python.tests.test_torch_engine as t; m = t.net()\n"
        script += "e = t.Engine(m, {**t.CONFIG, **t.tier('nvme', sys.argv[1])}, overlap=True); t.train(e, range(2))\n"
        script += "e.backward(t.loss_of(e, 9)); kept = m.state_dict(), m[5].weight.detach()"
        with tempfile.TemporaryDirectory() as scratch:
            done = python(script, scratch)
            self.assertEqual((done.returncode, done.stderr, os.listdir(scratch)), (0, "", []))

    def test_ctrl_c_loses_nothing(self) -> None:
        engine, other = Engine(net().eval(), CONFIG), Engine(net().eval(), CONFIG)
        interrupts = tries = step = 0
        while step < 20:
            timer = threading.Timer(0.001 * (step % 7 + 1) * 2**tries, signal.raise_signal, [signal.SIGINT])
            try:
                timer.start()
                while engine._layers.info.steps <= step:
                    engine.drop()
                    train(engine, range(step, step + 1))
                timer.cancel()
                timer.join()
            except KeyboardInterrupt:
                interrupts += 1
                timer.join()
            engine.drop()
            tries = tries + 1 if engine._layers.info.steps == step else 0
            step = engine._layers.info.steps
        self.assertGreater(interrupts, 3)
        train(other, range(20))
        self.assertTrue(equal(engine, other))

    def test_a_resumed_run_has_the_same_bits(self) -> None:
        for device in ("cpu", "nvme"):
            with self.subTest(device=device), tempfile.TemporaryDirectory() as scratch:
                drive, runs = Path(scratch) / "drive", Path(scratch) / "runs"
                drive.mkdir()
                config = {**CONFIG, "bf16": {"enabled": True}, **tier(device, str(drive))}
                whole = Engine(net(), config)
                train(whole, range(6))
                first = Engine(net(), config, save=Path(scratch) / "saves")
                train(first, range(2))
                first.save(runs, client_state={"epoch": 1})
                train(first, range(2, 4))
                first.optimizer.param_groups[0]["lr"] = 1e-3
                first.save(runs, "mine", {"epoch": 2})
                self.assertTrue(first.saved(wait=True))
                self.assertEqual((runs / "latest").read_text(), "mine")
                first.save(runs, "again")
                train(first, range(4, 6))
                self.assertTrue(equal(first, whole))
                first.destroy()
                self.assertEqual(len(list(runs.glob("*/strata/*"))) > 5, True)
                second = Engine(net(), config, save=Path(scratch) / "others")
                self.assertEqual(second.load(runs, "mine"), {"epoch": 2})
                train(second, range(4, 6))
                for (name, p), q in zip(second.module.state_dict().items(), whole.module.state_dict().values(), strict=True):
                    self.assertTrue(torch.equal(p, q), name)
                self.assertEqual(second.load(runs, "global_step2"), {"epoch": 1})
                train(second, range(2, 6))
                self.assertTrue(equal(second, whole))

    def test_two_ranks_have_the_bits_of_one(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
                 "python.tests.test_torch_engine", scratch],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
                capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            one = run_rank(0, 1, 0, None)
            torch.set_num_threads(threads)
            for stage in STAGES:
                for rank in range(2):
                    self.assertTrue(equal(one, torch.load(Path(scratch) / f"{stage}-{rank}.pt", weights_only=False)), stage)


class Saves(unittest.TestCase):
    """What saves and loads that fail, are repeated or go back leave behind."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.runs, self.own = Path(scratch.name) / "runs", Path(scratch.name) / "own"

    def engine(self, **more: Any) -> Engine:
        made = Engine(net(), SINGLE, save=self.own, **more)
        self.addCleanup(made.destroy)
        return made

    def loaded(self, tag: str | None = None, directory: Path | None = None) -> tuple[Any, list[torch.Tensor]]:
        """Client state and weights, as another process would have them."""
        other = Engine(net(), SINGLE)
        client = other.load(directory or self.runs, tag)
        self.addCleanup(other.destroy)
        return client, [p.clone() for p in other.module.parameters()]

    def assert_weights(self, engine: Engine, weights: list[torch.Tensor]) -> None:
        self.assertTrue(all(map(torch.equal, engine.module.parameters(), weights)))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.runs))

    def test_a_save_that_failed_is_never_taken_for_one(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs, client_state=1)
        self.assertTrue(engine.saved(wait=True))
        train(engine, range(1, 2))
        full = strata.Error("E_IO", "no space is left")
        with mock.patch("strata.layers.Layers.save", side_effect=full), self.assertRaises(strata.Error):
            engine.save(self.runs, client_state=2)
        self.assertFalse(engine.saved(wait=True))
        self.assertEqual((self.names(), self.loaded()[0]), (["global_step1", "latest"], 1))
        with mock.patch("strata.layers.Layers.save"), self.assertRaisesRegex(RuntimeError, "step 2 was not made"):
            engine.save(self.runs, client_state=2)  # its report is lost
        self.assertFalse(engine.saved(wait=True))
        engine.save(self.runs, client_state=2)
        self.assertTrue(engine.saved(wait=True))
        client, weights = self.loaded()
        self.assertEqual(client, 2)
        self.assert_weights(engine, weights)

    def test_a_tag_is_replaced_by_a_rename(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs, "last", 1)
        engine.saved(wait=True)
        first = [p.clone() for p in engine.module.parameters()]
        (self.runs / "last" / "notes").write_text("of others")
        train(engine, range(1, 2))
        second = [p.clone() for p in engine.module.parameters()]
        rename, seen = os.rename, []
        for at in range(3):  # killed before, between and after the two renames
            copy_at = self.runs.with_name(f"killed-{at}")

            def renamed(source: Path, target: Path, at: int = at, copy_at: Path = copy_at) -> None:
                if str(source).startswith(str(self.runs / "last")) and len(seen) == at:
                    shutil.copytree(self.runs, copy_at)
                seen.append(str(target))
                rename(source, target)

            seen.clear()
            engine.save(self.runs, "last", 2)
            with mock.patch("os.rename", renamed):
                self.assertTrue(engine.saved(wait=True))
            self.assertEqual(self.names(), ["last", "latest"])
            self.assertEqual((self.runs / "last" / "notes").read_text(), "of others")
            for directory, wanted in ((copy_at, (1, first) if at < 2 else (2, second)), (self.runs, (2, second))):
                if directory.exists():
                    client, weights = self.loaded("last", directory)
                    self.assertEqual(client, wanted[0])
                    self.assertTrue(all(map(torch.equal, weights, wanted[1])))

    def test_a_run_that_goes_back_saves_again(self) -> None:
        for killed in (False, True):
            with self.subTest(killed=killed):
                engine = self.engine(overwrite=True)
                train(engine, range(1))
                engine.save(self.runs, client_state=1)
                engine.saved(wait=True)
                train(engine, range(1, 2))
                engine.save(self.runs, client_state=2, latest=False)
                if killed:  # between whole and linked
                    engine._layers.saved(True)
                    engine._saves = type(engine._saves)("", False)
                    engine.destroy()
                    engine = self.engine()
                self.assertEqual(engine.load(self.runs, "global_step1"), 1)
                engine.save(self.runs, "again", "of step 1")  # and without a step
                train(engine, range(5, 6))
                engine.save(self.runs, client_state="other")
                self.assertTrue(engine.saved(wait=True))
                client, weights = self.loaded()
                self.assertEqual((client, self.loaded("again")[0]), ("other", "of step 1"))
                self.assert_weights(engine, weights)
                engine.destroy()
        engine = self.engine()
        train(engine, range(1))
        with self.assertRaisesRegex(RuntimeError, "of another run"):
            engine.save(self.runs)

    def test_what_does_not_fit_is_refused_before_anything_changes(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        engine.save(self.runs, "last", 1)
        engine.saved(wait=True)
        train(engine, range(1, 2))
        before = [p.clone() for p in engine.module.parameters()]
        client = self.runs / "last" / "client-0.pt"
        whole = client.read_bytes()
        for at in range(0, len(whole), len(whole) // 40):
            client.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
            with self.assertRaisesRegex(strata.Error, "its checksum differs"):
                engine.load(self.runs)
        client.write_bytes(whole)
        told = client.with_suffix(".json")
        kept = told.read_text()
        told.write_text(kept.replace('"step": 1', '"step": 2'))
        with self.assertRaisesRegex(strata.Error, "is of step 2"):
            engine.load(self.runs)
        told.write_text(kept)
        engine.module.register_buffer("more", torch.ones(3))
        with self.assertRaisesRegex(ValueError, "has no buffer more"):
            engine.load(self.runs)
        self.assertEqual(engine._layers.info.steps, 2)
        self.assert_weights(engine, before)

    def test_a_full_disk_at_linking_is_no_error_of_a_step(self) -> None:
        engine = self.engine()
        train(engine, range(1))
        full = OSError(errno.ENOSPC, "no space is left")
        ask = engine._layers.saved
        with mock.patch.object(engine._layers, "saved", lambda wait: (False, None)):
            engine.save(self.runs)
        ask(True)
        with mock.patch("strata.torch.saves._link", side_effect=full), self.assertLogs("strata", "WARNING"):
            train(engine, range(1, 2))
        with self.assertRaises(OSError):
            engine.saved()
        self.assertEqual((engine.saved(wait=True), self.names()), (False, []))
        with mock.patch("strata.torch.saves._link", side_effect=full), self.assertRaises(OSError):
            engine.save(self.runs)
            engine.destroy()
        engine.destroy()
        with self.assertRaisesRegex(RuntimeError, "destroyed"):
            engine.save(self.runs)


STAGES = (0, 1, 2)


def run_rank(rank: int, ranks: int, stage: int, scratch: str | None) -> torch.nn.Module:
    """Four micro-batches a step, of all ranks together."""
    torch.manual_seed(rank)
    module = net().eval()
    if rank > 0:  # rank 0's weights count
        with torch.no_grad():
            module[5].weight.zero_()
    config: dict[str, Any] = {
        **CONFIG,
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4 // ranks,
        "zero_optimization": {"stage": stage},
        "strata": {"leaves": 2},
    }
    engine = Engine(module, config, save=None if scratch is None else f"{scratch}/saves-{stage}")
    for step in range(4):
        for micro in range(4 // ranks):
            engine.backward(loss_of(engine, 4 * step + (4 // ranks) * rank + micro))
            engine.step()
            if scratch is not None and (step, micro) == (2, 0):  # of step 2; the gradients of this micro-batch stay
                engine.save(f"{scratch}/runs-{stage}")
    if scratch is not None:
        engine.load(f"{scratch}/runs-{stage}")
        for step in range(2, 4):
            for micro in range(4 // ranks):
                engine.backward(loss_of(engine, 4 * step + (4 // ranks) * rank + micro))
                engine.step()
    engine.destroy()
    return module


def main_of_a_rank() -> None:
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for stage in STAGES:
        torch.save(run_rank(rank, ranks, stage, sys.argv[1]), f"{sys.argv[1]}/{stage}-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main_of_a_rank()
