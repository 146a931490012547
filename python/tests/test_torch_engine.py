"""strata.torch.Engine beside PyTorch.  Skipped without torch; what needs transformers without that."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch
from torch.nn import functional

from strata.torch import Engine

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
}
SINGLE = {**CONFIG, "train_batch_size": 1, "gradient_accumulation_steps": 1}


def net() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers = (
        *(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, stride=2)),
        *(torch.nn.Flatten(), torch.nn.Linear(4 * 7 * 7, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 5)),
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
            *((added, "5.extra"), (lambda m: m.half(), "0.weight"), (lambda m: loss_of(m, 0).backward(), "0.bias")),
        ):
            module = net()
            module[0].weight.requires_grad_(False)
            engine = Engine(module, SINGLE)
            train(engine, range(1))
            module.to("cpu")
            change(module)
            with self.assertRaisesRegex(RuntimeError, f"^{named} "):
                engine.backward(sum(p.float().sum() for p in module.parameters() if p.requires_grad))


if __name__ == "__main__":
    unittest.main()
