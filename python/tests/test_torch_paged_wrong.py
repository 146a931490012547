"""Wrong uses of modules larger than memory: offload_param, stage 3, zero.Init, gathering, trace.  Each raises, says why, and
leaves nothing open or on the drive.  Skipped without torch."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import io
import os
import sys
import unittest
from collections.abc import Callable
from typing import Any

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)

import torch

import strata
from strata import deepspeed
from strata.torch import Engine, trace

from .common import InScratch, open_files

CONFIG: dict[str, Any] = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


class Net(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x.square().mean()


class Wrong(InScratch):
    """The engine of the class is used by each, and goes on."""

    engine: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.engine = deepspeed.initialize(model=Net(), config=cls.config())[0]
        cls.engine.save_checkpoint(str(cls.scratch / "saved"))
        cls.addClassCleanup(cls.engine.destroy)

    @classmethod
    def config(cls, strata: dict[str, Any] | None = None, **offload_param: Any) -> dict[str, Any]:
        given = {"device": "nvme", "nvme_path": str(cls.scratch), **offload_param}
        zero = {"stage": 3, "offload_param": {key: value for key, value in given.items() if value is not None}}
        return {**CONFIG, "zero_optimization": zero, **({} if strata is None else {"strata": strata})}

    def x(self) -> torch.Tensor:
        return torch.ones(2, 8)

    def each(self, uses: tuple[tuple[Callable[[], Any], type[Exception], str], ...]) -> None:
        gc.collect()
        opened, lying = open_files(), sorted(os.listdir(self.scratch))
        for number, (use, kind, words) in enumerate(uses):
            with self.subTest(number, words=words):
                with self.assertRaisesRegex(kind, words):
                    use()
                gc.collect()
                self.assertEqual(open_files(), opened)
                self.assertEqual(sorted(os.listdir(self.scratch)), lying)
        self.engine.drop()
        self.engine.module.zero_grad()
        self.engine.backward(self.engine(self.x()))
        self.assertIsNotNone(self.engine.step())

    def test_configurations(self) -> None:
        def start(*given: Any, **offload_param: Any) -> Callable[[], Any]:
            return lambda: deepspeed.initialize(model=Net(), config=self.config(*given, **offload_param))

        def direct(module: Any = None, **what: Any) -> Callable[[], Any]:
            return lambda: Engine(module or Net(), self.config(), **what)

        self.each(
            (
                (start(device="disk"), strata.Error, "offload_param.device"),
                (start(nvme_path=None), strata.Error, "nvme_path"),
                (start(nvme_path=str(self.book)), strata.Error, "book.txt"),
                (start(nvme_path=str(self.scratch / "none")), strata.Error, "none"),
                (start(nvme_path=7), strata.Error, "nvme_path"),
                (start(devise="cpu"), strata.Error, "offload_param.devise"),
                (start({"boundary_bytes": -1}), strata.Error, "strata.boundary_bytes"),
                (start({"boundary_bytes": "many"}), strata.Error, "strata.boundary_bytes"),
                (start({"boundary_byte": 64}), strata.Error, "strata.boundary_byte"),
                (start({"device_memory": 1, "host_memory": 1}), strata.Error, "memory"),
                (start({"compute": "strata", "seq_len": 8}), ValueError, "Net is no model"),
                (start({"update": "gated"}), ValueError, "overlap"),
                (direct(3), TypeError, "torch.nn.Module, not int"),
                (direct(layers="bricks"), ValueError, "Net has no bricks"),
                (direct(layers=[]), ValueError, "no list of layers"),
                (direct(example=torch.ones(2, 9)), RuntimeError, "9"),
                (direct(example={"y": 1}), TypeError, "'y'"),
                (direct(boundary_bytes=1 << 60), strata.Error, "boundary_bytes"),
                (direct(machine=strata.Machine(device="tpu")), strata.Error, "tpu"),
            )
        )

    def test_weights_that_page(self) -> None:
        module = self.engine.module
        p = module.blocks[1].weight
        foreign = Net(9).state_dict()

        def gather(*given: Any) -> Callable[[], Any]:
            def use() -> None:
                with deepspeed.zero.GatheredParameters(*given):
                    pass

            return use

        def other() -> None:
            engine = deepspeed.initialize(model=Net(9), config=self.config())[0]
            engine.load_checkpoint(str(self.scratch / "saved"))

        def within() -> None:
            self.engine.backward(self.engine(self.x()))
            self.engine.backward(self.engine(self.x()))

        def gathers_within() -> None:
            loss = self.engine(self.x())
            try:
                gather([p])()
            finally:
                del loss
                self.engine.drop()

        self.each(
            (
                (other, strata.Error, "another model"),
                (lambda: p.sum(), RuntimeError, "blocks.1.weight is paged"),
                (lambda: torch.save(p, io.BytesIO()), RuntimeError, "blocks.1.weight is paged"),
                (lambda: copy.deepcopy(p), RuntimeError, "blocks.1.weight is paged"),
                (lambda: module.blocks[1](self.x()), RuntimeError, "and forward of blocks.0 was expected"),
                (lambda: Engine(module, self.config()), RuntimeError, "in the pages of another engine"),
                (lambda: module.load_state_dict(foreign), RuntimeError, "size mismatch"),
                (lambda: module.load_state_dict({}), RuntimeError, "Missing key"),
                (within, RuntimeError, "engine.step.. was expected"),
                (gathers_within, RuntimeError, "between steps"),
                (gather(None), TypeError, "None"),
            )
        )

    def test_init(self) -> None:
        def init(config: Any) -> Callable[[], Any]:
            def use() -> None:
                with deepspeed.zero.Init(config_dict_or_path=config):
                    Net(256)  # small weights stay in memory

            return use

        def fails_inside() -> None:
            with deepspeed.zero.Init(config_dict_or_path=self.config()):
                Net(256)
                raise LookupError("of the caller")

        def makes_none() -> None:
            with deepspeed.zero.Init(config_dict_or_path=self.config()):
                torch.nn.Linear(8, -1)

        self.each(
            (
                (init(str(self.scratch / "none.json")), FileNotFoundError, "none.json"),
                (init(7), TypeError, "int"),
                (init(self.config(devise="cpu")), strata.Error, "offload_param.devise"),
                (init(self.config(nvme_path=str(self.scratch / "none"))), OSError, "none"),
                (init(self.config(nvme_path=str(self.book))), OSError, "book.txt"),
                (fails_inside, LookupError, "of the caller"),
                (makes_none, RuntimeError, "negative dimension"),
            )
        )
        self.assertEqual(type(torch.nn.Linear(256, 256).weight), torch.nn.Parameter)  # made as without Init

    def test_traces(self) -> None:
        net = Net().train()
        with contextlib.suppress(RuntimeError):
            trace(net, torch.ones(2, 9))
        self.assertTrue(net.training and not net.blocks[0]._forward_pre_hooks)
        self.each(
            (
                (lambda: trace(torch.nn.Linear(8, 8), self.x()), ValueError, "Linear has no list of layers"),
                (lambda: trace(Net(), self.x(), layers="bricks"), ValueError, "Net has no bricks"),
                (lambda: trace(Net(), self.x(), layers=["blocks", "blocks.0"]), ValueError, "are one module"),
                (lambda: trace(Net(), None), TypeError, "NoneType"),
                (lambda: trace(Net(), {"y": self.x()}), TypeError, "'y'"),
                (lambda: trace(3, self.x()), TypeError, "torch.nn.Module, not int"),
            )
        )


if __name__ == "__main__":
    unittest.main()
