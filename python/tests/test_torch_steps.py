"""strata.torch.Engine beside PyTorch: schedules of momentum, and who may call."""

from __future__ import annotations

import importlib.util
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

from strata.torch import Engine

from .test_torch_engine import SINGLE, loss_of, net

_STEPS = 24


def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    return [{"params": [p for p in model.parameters() if (p.dim() > 1) == matrices]} for matrices in (True, False)]


class Cycles(unittest.TestCase):
    def beside(self, rule: str, made: Callable[..., torch.optim.Optimizer], **values: Any) -> None:
        """The same gradients, and OneCycleLR over the optimizer of each: group by group with another momentum."""
        a, b = net(), net()
        optimizer = made(groups(a), lr=1e-3, **values)
        engine = Engine(b, {**SINGLE, "optimizer": {"type": rule, "params": {"lr": 1e-3, **values}}}, parameters=groups(b))
        cycle = {"max_lr": [1e-2, 5e-3], "total_steps": _STEPS + 1, "base_momentum": [0.7, 0.8], "max_momentum": [0.95, 0.85]}
        schedules = [torch.optim.lr_scheduler.OneCycleLR(one, **cycle) for one in (optimizer, engine.optimizer)]
        for step in range(_STEPS):
            optimizer.zero_grad()
            loss_of(a, step).backward()
            grads = [p.grad.clone() for p in a.parameters()]
            torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
            optimizer.step()
            engine.backward(sum((q * g).sum() for q, g in zip(b.parameters(), grads, strict=True)))
            engine.step()
            for schedule in schedules:
                schedule.step()
        for one, other in zip(optimizer.param_groups, engine.optimizer.param_groups, strict=True):
            name = "momentum" if "momentum" in values else "betas"
            self.assertEqual(one[name], other[name])
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            self.assertLess(float((p - q).detach().norm() / p.detach().norm()), 1e-6)
        engine.destroy()

    def test_one_cycle_of_adamw(self) -> None:
        self.beside("AdamW", torch.optim.AdamW, betas=(0.9, 0.999), weight_decay=0.01)

    def test_one_cycle_of_sgd(self) -> None:
        self.beside("SGD", torch.optim.SGD, momentum=0.9)

    def test_betas_that_are_none(self) -> None:
        engine = Engine(net(), SINGLE)
        self.addCleanup(engine.destroy)
        engine.optimizer.param_groups[0]["betas"] = (1.0, 0.999)
        engine.backward(loss_of(engine, 0))
        with self.assertRaisesRegex(Exception, "beta1 of parameter group 0 is 1: 0 to 0.9999999 are possible"):
            engine.step()


class Callers(unittest.TestCase):
    def test_one_thread_at_a_time(self) -> None:
        engine, alone = (Engine(net(), SINGLE) for _ in range(2))
        inside, done = threading.Event(), threading.Event()

        def waits(_: torch.Tensor) -> None:
            inside.set()
            done.wait(60)

        def other() -> None:
            inside.wait(60)
            for call in (engine.step, engine.drop, engine.flush, engine.saved, lambda: engine.backward(loss)):
                try:
                    call()
                except RuntimeError as error:
                    told.append(str(error))
            done.set()

        told: list[str] = []
        loss = loss_of(engine, 0)
        loss.register_hook(waits)
        thread = threading.Thread(target=other)
        thread.start()
        engine.backward(loss)
        thread.join()
        self.assertEqual(len(told), 5)
        for text in told:
            self.assertIn("while another thread is within backward() of this engine", text)
        thread = threading.Thread(target=engine.step)  # by turns is fine
        thread.start()
        thread.join()
        alone.backward(loss_of(alone, 0))
        alone.step()
        for p, q in zip(engine.module.parameters(), alone.module.parameters(), strict=True):
            self.assertTrue(torch.equal(p, q))
        engine.destroy()
        alone.destroy()
