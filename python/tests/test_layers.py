"""strata.layers: the calls of strata/layers.h, without torch and numpy."""

from __future__ import annotations

import ctypes
import gc
import tempfile
import unittest
from pathlib import Path
from typing import Any

import strata
from strata.layers import Group, Layer, Layers, Tensor, memory

from .common import HERE, open_files, threads

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
}
ELEMS = 1200
LAYERS = (
    Layer("table", [Tensor("rows", (30, 40)), Tensor("scale", (ELEMS,), group=1)], resident=True),
    Layer("first", [Tensor("w1", (ELEMS,))], boundary_bytes=16),
    Layer("second", [Tensor("w2", (ELEMS,)), Tensor("fixed", (8,), group=None)]),
)


def floats(address: int, count: int) -> Any:
    return (ctypes.c_float * count).from_buffer(memory(address, 4 * count))


def fill(tensor: int, first: int, elems: int, address: int) -> None:
    floats(address, elems)[:] = [(first + i + tensor) % 7 * 0.1 - 0.2 for i in range(elems)]


def opened(resident: bool = False, **changes: Any) -> Layers:
    layers = [Layer(each.name, each.tensors, True) for each in LAYERS] if resident else LAYERS
    made = Layers(CONFIG, layers, groups=[Group(), Group("plain", 2.0, 0.0)], machine=HERE, overrides=changes, caller_threads=1)
    made.load(fill)
    return made


def gradient(model: Layers, view: Any, tensor: int, part: float) -> None:
    """That of part x the sum of squares."""
    told = model.tensors[tensor]
    weights = floats(view.weights + told.weight_at, told.elems)
    if tensor % 2:
        grad = (ctypes.c_float * told.elems)(*(part * w for w in weights))
        model.grad(tensor, ctypes.addressof(grad))
    else:
        sums = floats(view.sum + 4 * told.sum_at, told.elems)
        for i, weight in enumerate(weights):
            sums[i] += part * weight


def micro(model: Layers, part: float, resident: bool) -> None:
    for layer in (1, 2):
        if not resident:
            view = model.enter(model.FORWARD, layer)
            if view.boundary is not None:
                floats(view.boundary, 4)[:] = [part] * 4
            model.leave()
    for layer, tensor in ((2, 3), (1, 2)):
        view = model.use(model.BACKWARD, layer) if resident else model.enter(model.BACKWARD, layer)
        if view.boundary is not None:
            assert floats(view.boundary, 4)[3] == ctypes.c_float(part).value
        gradient(model, view, tensor, part)
        if not resident:
            model.leave()
    view = model.use(model.BACKWARD, 0)
    for tensor in (0, 1):
        gradient(model, view, tensor, part)
    model.micro_end()


def train(model: Layers, steps: int, resident: bool = False) -> list[tuple[float, float]]:
    made = []
    for step in range(steps):
        assert model.begin() == 1
        for part in (1.0, 0.5 + step):
            micro(model, part, resident)
        told = model.end([1.0, 2.0 + step])
        made.append((told.loss, told.grad_norm))
    return made


class Steps(unittest.TestCase):
    def test_resident_and_ordered_layers_have_the_same_bits(self) -> None:
        with tempfile.TemporaryDirectory() as scratch, opened() as one, opened(True) as other:
            nvme = {"zero_optimization.offload_optimizer.device": "nvme", "strata.nvme": [scratch], "strata.update": "serial"}
            wanted = train(one, 3)
            self.assertEqual(wanted[0][0], 1.5)
            self.assertEqual(train(other, 3, True), wanted)
            self.assertEqual(one.digest(), other.digest())
            with opened(True, **nvme) as third:
                self.assertEqual((train(third, 3, True), third.digest()), (wanted, one.digest()))

    def test_values_by_name(self) -> None:
        with opened() as model:
            train(model, 2)
            self.assertEqual([t.name for t in model.tensors], ["rows", "scale", "w1", "w2", "fixed"])
            self.assertEqual((model.tensors[4].group, model.tensors[0].shape, model.info.steps), (None, (30, 40), 2))
            out = (ctypes.c_float * 10)()
            values = (ctypes.c_float * 10)(*range(10))
            model.write(3, "WEIGHT", ctypes.addressof(values), first=5, elems=10)
            model.read(3, "WEIGHT", ctypes.addressof(out), first=5, elems=10)
            self.assertEqual(list(out), [float(i) for i in range(10)])
            with self.assertRaises(strata.Error):
                model.read(4, "MOMENT1", ctypes.addressof(out), elems=8)

    def test_a_step_that_is_dropped_and_rates_at_its_end(self) -> None:
        with opened() as model:
            train(model, 1)
            before = model.digest()
            model.begin(lr=[1.0, 1.0])
            micro(model, 1.0, False)
            self.assertTrue(model.drop().dropped)
            self.assertEqual(model.digest(), before)
            model.begin(lr=[1.0, 1.0])
            micro(model, 1.0, False)
            micro(model, 1.0, False)
            model.end(lr=[0.0, 0.0], weight_decay=[0.0, 0.0])
            self.assertEqual(model.digest()[0], before[0])
            model.begin(evaluates=True, micros=1)
            for layer in (1, 2):
                model.enter(model.FORWARD, layer)
                model.leave()
            with self.assertRaisesRegex(strata.Error, "evaluation"):
                model.use(model.BACKWARD, 0)
            model.micro_end()
            model.end()

    def test_a_checkpoint(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            saves = {"strata.save": str(Path(scratch) / "saves")}
            with opened(**saves) as model:
                train(model, 2)
                model.save(note="half")
                self.assertTrue(model.saved(wait=True)[1].endswith("step-00000002"))
                wanted = train(model, 1), model.digest()
            with opened(**saves, **{"strata.keep": 3}) as model:
                self.assertEqual(model.resume(saves["strata.save"]), "half")
                self.assertEqual((train(model, 1), model.digest()), wanted)

    def test_what_is_wrong_raises_and_leaves_nothing(self) -> None:
        def fails(*_: int) -> None:
            raise LookupError("no such tensor")

        opened().close()
        before = threads(1), open_files()
        with self.assertRaisesRegex(LookupError, "no such tensor"), opened() as model:
            model.load(fails)
        with self.assertRaisesRegex(strata.Error, "two tensors are called w1"):
            Layers(CONFIG, [LAYERS[1], Layer("again", LAYERS[1].tensors)], machine=HERE)
        with self.assertRaisesRegex(strata.Error, "rows"):
            Layers(CONFIG, [Layer("l", [Tensor("rows", (0, 4))])], machine=HERE)
        with opened() as model:
            with self.assertRaisesRegex(strata.Error, "no step is under way"):
                model.micro_end()
            model.begin()
            with self.assertRaisesRegex(strata.Error, "out of order"):
                model.enter(model.FORWARD, 2)
            with self.assertRaises(strata.Error) as raised:
                model.flush()
            self.assertEqual(raised.exception.status, "E_BUSY")
        with self.assertRaisesRegex(ValueError, "closed"):
            model.begin()
        gc.collect()
        self.assertEqual((threads(before[0]), open_files()), before)


if __name__ == "__main__":
    unittest.main()
