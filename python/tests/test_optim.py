"""strata.optim beside PyTorch's optimizers.  Skipped without torch."""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import pickle
import resource
import sys
import unittest
from contextlib import suppress
from typing import Any
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
from strata import _drive, optim

from .common import InScratch, open_files, threads

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


def tensors(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = torch.Generator().manual_seed(7)
    shapes = ((300, 71), (5,), (64, 33), (1, 1), (90, 100), (0,))
    return [torch.nn.Parameter(torch.randn(shape, generator=made).to(dtype)) for shape in shapes]


def take_steps(parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Some parameters have no gradient in some steps."""
    for step in steps:
        made = torch.Generator().manual_seed(step)
        for index, parameter in enumerate(parameters):
            grad = (torch.randn(parameter.shape, generator=made) * 0.1).to(parameter.dtype)
            parameter.grad = None if (index == 2 and step < 2) or (index == 0 and step == 1) else grad
        optimizer.step()


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = [(one["state"][index], other["state"][index]) for index in one["state"]]
    return (
        one["param_groups"] == other["param_groups"]
        and one["state"].keys() == other["state"].keys()
        and all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)
    )


def same(one: list[torch.nn.Parameter], other: list[torch.nn.Parameter]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@mock.patch.object(_drive, "_CHUNK_PACKS", 2)
class OnADrive(InScratch):
    def there(self) -> dict[str, Any]:
        return {"device": "nvme", "nvme_path": [self.scratch, self.scratch]}

    def kinds(self) -> Any:
        for rule in (optim.AdamW, optim.Adam, optim.Lion, optim.Adagrad, optim.SGD):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                yield rule, dtype, "fp32"
        yield optim.AdamW, torch.float32, "bf16"
        yield optim.Lion, torch.bfloat16, "8bit"
        yield optim.Adam, torch.float16, "8bit"

    def test_the_bits_are_those_of_memory(self) -> None:
        for rule, dtype, moments in self.kinds():
            with self.subTest(rule=rule.__name__, dtype=dtype, moments=moments):
                ours, theirs = tensors(dtype), tensors(dtype)
                made = []
                for parameters, place in ((ours, self.there()), (theirs, {})):
                    optimizer = rule(parameters[:2], weight_decay=0.1, moments=moments, **place)
                    optimizer.add_param_group({"params": parameters[2:], "lr": 3e-3})
                    take_steps(parameters, optimizer, range(4))
                    made.append(optimizer)
                self.assertTrue(same(ours, theirs))
                self.assertTrue(same_state(made[0].state_dict(), made[1].state_dict()))
        self.assertEqual(os.listdir(self.scratch), ["book.txt"])

    def test_a_state_of_one_place_goes_on_in_the_other(self) -> None:
        for rule, dtype, moments in ((optim.AdamW, torch.float16, "fp32"), (optim.SGD, torch.bfloat16, "8bit")):
            whole = tensors(dtype)
            take_steps(whole, rule(whole, moments=moments), range(6))
            for first, second in (({}, self.there()), (self.there(), {}), (self.there(), self.there())):
                parameters = tensors(dtype)
                optimizer = rule(parameters, moments=moments, **first)
                take_steps(parameters, optimizer, range(3))
                kept = pickle.loads(pickle.dumps((parameters, optimizer.state_dict())))
                optimizer = rule(kept[0], moments=moments, **second)
                take_steps(kept[0], optimizer, range(50, 52))  # a state that the loaded one replaces
                with torch.no_grad():
                    for one, other in zip(kept[0], parameters, strict=True):
                        one.copy_(other)
                optimizer.load_state_dict(kept[1])
                take_steps(kept[0], optimizer, range(3, 6))
                self.assertTrue(same(kept[0], whole))

    def test_parameters_of_another_order_in_memory(self) -> None:
        a, b = (net().to(memory_format=torch.channels_last) for _ in range(2))
        one, other = optim.AdamW(a.parameters(), **self.there()), optim.AdamW(b.parameters())
        train(a, one, range(2))
        train(b, other, range(2))
        self.assertTrue(equal(a, b))
        self.assertTrue(same_state(one.state_dict(), other.state_dict()))

    def test_memory_threads_and_files_are_given_back(self) -> None:
        before = (threads(1), open_files())
        parameters = tensors(torch.float32)
        optimizer = optim.AdamW(parameters, threads=2, **self.there())
        self.assertEqual(open_files(), before[1])
        take_steps(parameters, optimizer, range(1))
        self.assertNotEqual(open_files(), before[1])
        optimizer.close()
        optimizer.close()
        self.assertEqual((threads(before[0]), open_files()), before)
        for use in (optimizer.step, optimizer.state_dict):
            with self.assertRaisesRegex(strata.Error, "the optimizer is closed"):
                use()
        del use
        optimizer = optim.AdamW(parameters, threads=2, **self.there())
        take_steps(parameters, optimizer, range(1))
        del optimizer
        self.assertEqual((threads(before[0]), open_files()), before)

    def test_a_failure_before_the_first_change_changes_nothing(self) -> None:
        parameters, wanted = tensors(torch.float32), tensors(torch.float32)
        optimizer = optim.AdamW(parameters, **self.there())
        take_steps(parameters, optimizer, range(2))
        take_steps(wanted, optim.AdamW(wanted), range(2))
        for name in open_files():
            number = name.split()[0]
            if str(self.scratch) in name:
                os.truncate(f"/proc/self/fd/{number}", 0)
        for _ in range(2):
            with self.assertRaisesRegex(strata.Error, str(self.scratch)) as raised:
                take_steps(parameters, optimizer, range(2, 3))
            self.assertEqual(raised.exception.status, "E_TRUNC")
            self.assertTrue(same(parameters, wanted))

    def test_a_failure_in_the_middle_ends_the_optimizer(self) -> None:
        parameters = tensors(torch.float32)
        optimizer = optim.AdamW(parameters, **self.there())
        take_steps(parameters, optimizer, range(2))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
        try:
            for use in (lambda: take_steps(parameters, optimizer, range(2, 3)), optimizer.state_dict, optimizer.step):
                with self.assertRaisesRegex(strata.Error, "the optimizer has ended with a part .*: make a new one"):
                    use()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertEqual([name for name in open_files() if str(self.scratch) in name], [])

    def test_a_state_for_which_there_is_no_room_is_refused_at_once(self) -> None:
        large = torch.nn.Parameter(torch.empty(1 << 40, dtype=torch.bfloat16, device="meta"))
        with (
            mock.patch.object(optim, "_check"),
            mock.patch.object(_drive, "_CHUNK_PACKS", 1 << 20),
            self.assertRaisesRegex(strata.Error, "free space") as raised,
        ):
            optim.Lion([large], device="nvme", nvme_path=self.scratch)
        self.assertEqual(raised.exception.status, "E_NOSPC")

    def test_a_child_of_fork_is_told(self) -> None:
        parameters = tensors(torch.float32)
        optimizer = optim.SGD(parameters, **self.there())
        take_steps(parameters, optimizer, range(1))
        child = os.fork()
        if child == 0:
            with suppress(strata.Error):
                optimizer.step()
                os._exit(1)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        take_steps(parameters, optimizer, range(1, 3))


class Hooks(InScratch):
    def calls(self, **place: Any) -> None:
        weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        weight.grad = torch.ones(4, dtype=torch.bfloat16)
        optimizer = optim.SGD([weight], lr=0.5, **place)
        optimizer.step()
        seen: list[Any] = []

        def added(_: Any, told: dict[str, Any]) -> dict[str, Any]:
            seen.append(sorted(told["state"][0]))
            return {**told, "more": 1}

        def cut(_: Any, told: dict[str, Any]) -> None:
            seen.append(told.pop("more"))
            told["param_groups"] = [{**group, "lr": 0.25} for group in told["param_groups"]]

        optimizer.register_state_dict_pre_hook(lambda _: seen.append("before"))
        optimizer.register_state_dict_post_hook(added)
        optimizer.register_load_state_dict_pre_hook(cut)
        optimizer.register_load_state_dict_post_hook(lambda made: seen.append(made.param_groups[0]["lr"]))
        told = optimizer.state_dict()
        optimizer.load_state_dict(told)
        self.assertEqual(seen, ["before", ["master", "momentum_buffer", "step"], 1, 0.25])
        self.assertEqual((told["more"], told["param_groups"][0]["lr"]), (1, 0.5))

    def test_all_of_pytorchs_are_called(self) -> None:
        self.calls()
        self.calls(device="nvme", nvme_path=self.scratch)


class WrongUses(InScratch):
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
        here = {"device": "nvme", "nvme_path": self.scratch}
        on_drive = optim.AdamW([torch.nn.Parameter(torch.ones(4))], **here)
        gc.collect()
        before = (threads(1), open_files())
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
            ("a drive without a directory", lambda: optim.AdamW([weight], device="nvme"), ValueError),
            ("no directories", lambda: optim.AdamW([weight], device="nvme", nvme_path=[]), ValueError),
            ("a directory for memory", lambda: optim.AdamW([weight], nvme_path=self.scratch), ValueError),
            ("a missing directory", lambda: optim.AdamW([weight], device="nvme", nvme_path="/no/such"), strata.Error),
            ("a file for a directory", lambda: optim.AdamW([weight], device="nvme", nvme_path=self.book), strata.Error),
            ("where no file can be", lambda: optim.AdamW([weight], device="nvme", nvme_path=["/proc"]), strata.Error),
            ("a NUL in a directory", lambda: optim.AdamW([weight], device="nvme", nvme_path="a\0b"), ValueError),
            ("a directory that is a number", lambda: optim.AdamW([weight], device="nvme", nvme_path=[5]), TypeError),
            ("a copy of state on a drive", lambda: copy.deepcopy(on_drive), TypeError),
            ("state on a drive, pickled", lambda: pickle.dumps(on_drive), TypeError),
            ("another's on a drive", lambda: optim.AdamW([weight], **here).load_state_dict(stepped.state_dict()), ValueError),
            ("too many threads", lambda: optim.AdamW([weight], threads=257), strata.Error),
            ("another's state", lambda: optim.AdamW(net().parameters()).load_state_dict(stepped.state_dict()), ValueError),
        ):
            with self.subTest(what), self.assertRaises(raised):
                use()
        gc.collect()
        self.assertEqual((threads(before[0]), open_files()), before)


if __name__ == "__main__":
    unittest.main()
