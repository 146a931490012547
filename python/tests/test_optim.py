"""strata.optim beside PyTorch's optimizers.  Skipped without torch."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import sys
import unittest
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
from strata import optim

PAIRS: tuple[tuple[type, type, dict[str, Any]], ...] = (
    (torch.optim.AdamW, optim.AdamW, {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}),
    (torch.optim.Adam, optim.Adam, {"lr": 3e-3, "weight_decay": 0.01}),
    (torch.optim.Adagrad, optim.Adagrad, {"lr": 1e-2, "weight_decay": 0.01}),
    (torch.optim.SGD, optim.SGD, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (torch.optim.SGD, optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1}),
)


def net() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = (
        *(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, stride=2), torch.nn.Flatten()),
        *(torch.nn.Linear(4 * 7 * 7, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 5)),
    )
    return torch.nn.Sequential(*layers)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    return torch.randn(6, 3, 16, 16, generator=made), torch.randint(0, 5, (6,), generator=made)


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    images, labels = batch(step)
    return torch.nn.functional.cross_entropy(model(images), labels)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, clip: float = 1.0) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(ours: torch.nn.Module, theirs: torch.nn.Module) -> float:
    """The largest of all parameters' relative distances."""
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class BesidePyTorch(unittest.TestCase):
    def test_the_same_gradients_give_the_same_weights(self) -> None:
        for theirs, ours, settings in PAIRS:
            with self.subTest(ours=ours.__name__):
                a, b = net(), net()
                one, other = theirs(a.parameters(), **settings), ours(b.parameters(), **settings)
                for step in range(50):
                    loss_of(a, step).backward()
                    torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)
                    for p, q in zip(a.parameters(), b.parameters(), strict=True):
                        q.grad = p.grad.clone()
                    one.step()
                    other.step()
                    one.zero_grad()
                self.assertLess(distance(b, a), 1e-6)

    def test_free_runs_have_the_same_losses(self) -> None:
        a, b = net(), net()
        theirs = train(a, torch.optim.AdamW(a.parameters(), lr=1e-3), range(30))
        ours = train(b, optim.AdamW(b.parameters(), lr=1e-3), range(30))
        for one, other in zip(ours, theirs, strict=True):
            self.assertAlmostEqual(one / other, 1, delta=1e-4)

    def test_lion_is_its_formula(self) -> None:
        weight = torch.nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(2)))
        wanted, moment = weight.detach().clone(), torch.zeros(100)
        optimizer = optim.Lion([weight], lr=0.01, weight_decay=0.1)
        for step in range(10):
            grad = torch.randn(100, generator=torch.Generator().manual_seed(step))
            weight.grad = grad.clone()
            optimizer.step()
            wanted = wanted * (1 - 0.01 * 0.1) - 0.01 * torch.sign(0.9 * moment + 0.1 * grad)
            moment = 0.99 * moment + 0.01 * grad
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-5, atol=1e-6)

    def test_groups_and_schedulers(self) -> None:
        a, b = net(), net()

        def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
            tensors = list(model.parameters())
            return [
                {"params": [p for p in tensors if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in tensors if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3},
            ]

        for model, kind in ((a, torch.optim.AdamW), (b, optim.AdamW)):
            optimizer = kind(groups(model), lr=1e-3)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
            for step in range(20):
                train(model, optimizer, range(step, step + 1))
                scheduler.step()
        self.assertLess(distance(b, a), 1e-5)

    def test_parameters_without_a_gradient_stay_and_count_no_step(self) -> None:
        a, b = net(), net()
        for model, kind in ((a, torch.optim.AdamW), (b, optim.AdamW)):
            optimizer = kind(model.parameters(), lr=1e-2)
            first = next(iter(model.parameters()))
            frozen = first.detach().clone()
            first.requires_grad_(False)
            train(model, optimizer, range(3))
            self.assertTrue(torch.equal(first, frozen))
            first.requires_grad_(True)
            train(model, optimizer, range(3, 6))
            self.assertFalse(torch.equal(first, frozen))
        self.assertLess(distance(b, a), 1e-5)

    def test_a_gradient_is_pytorchs_until_the_step(self) -> None:
        weight = torch.nn.Parameter(torch.ones(8))
        optimizer = optim.SGD([weight], lr=1.0)
        weight.grad = torch.full((8,), 100.0)
        weight.grad.mul_(0.01)
        optimizer.step()
        self.assertTrue(torch.allclose(weight, torch.zeros(8)))
        self.assertTrue(torch.equal(weight.grad, torch.full((8,), 100.0) * 0.01))
        optimizer.zero_grad()
        optimizer.step()
        self.assertTrue(torch.allclose(weight, torch.zeros(8)))

    def test_autograd_is_told_of_the_update(self) -> None:
        weight = torch.nn.Parameter(torch.ones(4))
        kept = (weight * weight).sum()
        weight.grad = torch.ones(4)
        optim.SGD([weight], lr=1.0).step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            kept.backward()

    def test_channels_last(self) -> None:
        a, b = net(), net().to(memory_format=torch.channels_last)
        train(a, optim.AdamW(a.parameters()), range(3))
        train(b, optim.AdamW(b.parameters()), range(3))
        self.assertLess(distance(b, a), 1e-4)

    def test_grad_scaler_skips_by_its_protocol(self) -> None:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor, wanted in ((float("inf"), 1.0), (1.0, 0.0)):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            self.assertTrue(torch.equal(weight.detach(), torch.full((4,), wanted)))


class State(unittest.TestCase):
    def resumed(self, dtype: torch.dtype, moments: str) -> None:
        whole, half = net().to(dtype), net().to(dtype)
        train16(whole, optim.AdamW(whole.parameters(), moments=moments), range(6))
        optimizer = optim.AdamW(half.parameters(), moments=moments)
        train16(half, optimizer, range(3))
        kept = pickle.loads(pickle.dumps((half.state_dict(), optimizer.state_dict())))
        again = net().to(dtype)
        again.load_state_dict(kept[0])
        optimizer = optim.AdamW(again.parameters(), moments=moments)
        optimizer.load_state_dict(kept[1])
        train16(again, optimizer, range(3, 6))
        self.assertTrue(equal(again, whole))
        if dtype != torch.float32:
            self.assertEqual(kept[1]["state"][0]["master"].dtype, torch.float32)

    def test_a_resumed_run_has_the_same_bits(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for moments in ("fp32", "bf16", "8bit"):
                with self.subTest(dtype=dtype, moments=moments):
                    self.resumed(dtype, moments)

    def test_masters_keep_what_16_bits_lose(self) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            weight = torch.nn.Parameter(torch.ones(64, dtype=dtype))
            optimizer = optim.SGD([weight], lr=1.0)
            for _ in range(100):
                weight.grad = torch.full((64,), 1e-4, dtype=dtype)
                optimizer.step()
            exact = optimizer.state_dict()["state"][0]["master"]
            self.assertTrue(torch.equal(exact.to(dtype), weight.detach()))
            torch.testing.assert_close(exact, torch.full((64,), 0.99), atol=1e-4, rtol=0)

    def test_masters_follow_weights_that_are_set(self) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            weight = torch.nn.Parameter(torch.ones(8, dtype=dtype))
            optimizer = optim.SGD([weight], lr=1.0)
            weight.grad = torch.full((8,), 1e-4, dtype=dtype)
            optimizer.step()
            weight.data.fill_(5.0)
            weight.grad = torch.zeros(8, dtype=dtype)
            optimizer.step()
            torch.testing.assert_close(weight.detach().float(), torch.full((8,), 5.0))

    def test_pytorchs_own_state_is_taken(self) -> None:
        a, b = net(), net()
        theirs = torch.optim.AdamW(a.parameters(), lr=1e-2)
        train(a, theirs, range(5))
        b.load_state_dict(a.state_dict())
        ours = optim.AdamW(b.parameters())
        ours.load_state_dict(theirs.state_dict())
        train(a, theirs, range(5, 8))
        train(b, ours, range(5, 8))
        self.assertLess(distance(b, a), 1e-5)
        torch.optim.AdamW(a.parameters()).load_state_dict(ours.state_dict())

    def test_momentum_of_pytorchs_own_is_taken(self) -> None:
        for steps in (0, 3):
            a, b = net(), net()
            theirs = torch.optim.SGD(a.parameters(), lr=1e-2, momentum=0.9, dampening=0.1)
            train(a, theirs, range(steps))
            b.load_state_dict(a.state_dict())
            ours = optim.SGD(b.parameters())
            ours.load_state_dict(theirs.state_dict())
            train(a, theirs, range(steps, steps + 3))
            train(b, ours, range(steps, steps + 3))
            self.assertLess(distance(b, a), 1e-5)

    def test_a_state_of_another_rule_changes_nothing(self) -> None:
        parameters = list(net().parameters())
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        lion = optim.Lion(parameters, lr=0.5)
        lion.step()
        other = torch.optim.AdamW(parameters, lr=0.5, maximize=True)
        for given, said in ((lion, "exp_avg_sq"), (other, "maximize")):
            ours = optim.AdamW(parameters, lr=0.1)
            with self.assertRaisesRegex(ValueError, said):
                ours.load_state_dict(given.state_dict())
            self.assertEqual(ours.param_groups[0]["lr"], 0.1)
            self.assertEqual(len(ours.state), 0)

    def test_copies_and_children_make_their_own(self) -> None:
        model = net()
        optimizer = optim.AdamW(model.parameters())
        train(model, optimizer, range(2))
        both = copy.deepcopy({"model": model, "optimizer": optimizer})
        train(model, optimizer, range(2, 4))
        train(both["model"], both["optimizer"], range(2, 4))
        self.assertTrue(equal(model, both["model"]))
        child = os.fork()
        if child == 0:
            weight = list(model.parameters())[-1]
            weight.grad = torch.ones_like(weight)
            before = weight.detach().clone()
            optimizer.step()
            os._exit(0 if not torch.equal(weight, before) else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


def train16(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """With gradients that need no kernels of 16 bits."""
    for step in steps:
        made = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = (torch.randn(parameter.shape, generator=made) * 0.1).to(parameter.dtype)
        optimizer.step()


class WrongUses(unittest.TestCase):
    def test_each_is_a_clear_exception(self) -> None:
        weight = torch.nn.Parameter(torch.ones(4))
        stepped = optim.SGD([weight], lr=0.1)
        weight.grad = torch.ones(4)
        stepped.step()
        sparse = torch.nn.Embedding(4, 2, sparse=True)
        sparse(torch.tensor([1])).sum().backward()
        changed = torch.nn.Parameter(torch.ones(4))
        turned = optim.SGD([changed], lr=0.1)
        changed.grad = torch.ones(4)
        turned.step()
        changed.grad, changed.data = None, torch.ones(4, dtype=torch.bfloat16)
        changed.grad = torch.ones(4, dtype=torch.bfloat16)
        groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(17)]
        for what, use, raised in (
            ("no such place", lambda: optim.AdamW([weight], device="attic"), ValueError),
            ("no such moments", lambda: optim.AdamW([weight], moments="fp8"), ValueError),
            ("a rate below 0", lambda: optim.AdamW([weight], lr=-1.0), strata.Error),
            ("a beta of 1", lambda: optim.AdamW([weight], betas=(0.9, 1.0)), strata.Error),
            ("an unknown setting", lambda: optim.AdamW([weight], amsgrad=True), TypeError),
            ("no parameters", lambda: optim.AdamW([]), ValueError),
            ("fp64", lambda: optim.AdamW([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]), TypeError),
            ("another device", lambda: optim.AdamW([torch.nn.Parameter(torch.ones(2, device="meta"))]), ValueError),
            ("a view with gaps", lambda: optim.AdamW([torch.nn.Parameter(torch.ones(4, 4)[:, ::2])]), ValueError),
            ("a group after a step", lambda: stepped.add_param_group({"params": [weight]}), ValueError),
            ("another dtype", turned.step, ValueError),
            ("17 groups", lambda: optim.AdamW(groups), ValueError),
            ("a sparse gradient", optim.SGD(sparse.parameters(), lr=0.1).step, ValueError),
            ("another's state", lambda: optim.AdamW(net().parameters()).load_state_dict(stepped.state_dict()), ValueError),
        ):
            with self.subTest(what), self.assertRaises(raised):
                use()


if __name__ == "__main__":
    unittest.main()
