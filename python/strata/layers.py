"""strata/layers.h in Python: strata keeps the state of a model of layers, the caller computes them (docs/layers.md).

    with Layers(config, [Layer("embedding", [Tensor("table", (50257, 768))], resident=True), ...]) as model:
        model.load(fill)
        scale = model.begin()
        view = model.use(model.BACKWARD, 0)     # ... gradients of (loss x scale) are added at view.sum ...
        model.micro_end()
        step = model.end(losses=[loss])

Addresses are whole numbers; memory() makes a buffer of one for numpy, torch and others.  Calls that may take long run on a
thread of the package; calls of layers and gradients run on the caller's.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._abi import Text, encoded, texts
from ._calls import Handle, Stop, blocked
from ._handles import Config, EngineHandle, Machine, Model, Plan, facts, open_config
from ._library import Library
from ._report import abi, got
from .errors import Error

Fill = Callable[[int, int, int, int], object]

_DTYPES = ("F32", "BF16", "F16")
_FROZEN = 0xFFFFFFFF  # STRATA_FROZEN


@dataclass(frozen=True)
class Tensor:
    """group: parameter group, None where it is frozen; dtype: "F32", or the model's."""

    name: str
    shape: Sequence[int]
    group: int | None = 0
    dtype: str = ""


@dataclass(frozen=True)
class Layer:
    """resident: always on the device, used in any order; else entered in the order of the list."""

    name: str
    tensors: Sequence[Tensor]
    resident: bool = False
    boundary_bytes: int = 0
    forward_flops: float = 0
    backward_flops: float = 0


@dataclass(frozen=True)
class Group:
    """Tensors that are trained alike; weight_decay None: the configuration's."""

    name: str | None = None
    lr_scale: float = 1
    weight_decay: float | None = None


@dataclass(frozen=True)
class Placed:
    """A tensor of an engine: `weight_at` bytes into its layer's weights, and `sum_at` fp32 elements into its sums."""

    name: str
    layer: int
    shape: tuple[int, ...]
    elems: int
    dtype: str
    group: int | None
    weight_at: int
    sum_at: int


@dataclass(frozen=True)
class View:
    """What a layer computes with; sum and boundary are None where there is none."""

    weights: int
    sum: int | None
    boundary: int | None
    boundary_bytes: int
    micro: int


@dataclass(frozen=True)
class Step:
    """How a step went (struct strata_step has the rest)."""

    loss: float
    grad_norm: float
    lr: float
    loss_scale: float
    skipped: bool
    dropped: bool
    seconds: float


def memory(address: int, size: int, owner: object = None) -> Any:
    """Memory of an engine's as a buffer.  `owner` lives as long as the buffer does."""
    made: Any = (ctypes.c_ubyte * size).from_address(address)
    made.owner = owner
    return made


class Comm(Handle):
    """The ranks of a run (docs/ranks.md): returns when all of them are there."""

    def __init__(self, rank: int, ranks: int, address: str, port: int, **members: Any) -> None:
        opened = abi().handle("strata_comm")
        opts = abi().make("strata_comm_opts", rank=rank, ranks=ranks, port=port, **members)
        opts.address = encoded(address)
        blocked(lambda: abi().strata_comm_open(ctypes.byref(opened), ctypes.byref(opts)))
        super().__init__(opened, "strata_comm_close")
        self.rank, self.ranks = rank, ranks

    def gather(self, mine: bytes, what: str) -> list[bytes]:
        """The same number of bytes from every rank."""
        out = ctypes.create_string_buffer(len(mine) * self.ranks)
        blocked(lambda: abi().strata_comm_gather(self.pointer, mine, len(mine), out, encoded(what)))
        return [out.raw[i : i + len(mine)] for i in range(0, len(out.raw), len(mine))]


class _Model(Handle):
    def __init__(self, config: Handle, layers: Sequence[Layer], groups: Sequence[Group], **members: Any) -> None:
        opened = abi().handle("strata_model")
        kept = [_tensors(layer) for layer in layers]
        rows = (abi().struct("strata_layer") * len(layers))(
            *(
                abi().make(
                    "strata_layer",
                    name=layer.name,
                    tensors=tensors,
                    tensor_count=len(layer.tensors),
                    resident=layer.resident,
                    boundary_bytes=layer.boundary_bytes,
                    forward_flops=float(layer.forward_flops),
                    backward_flops=float(layer.backward_flops),
                )
                for layer, tensors in zip(layers, kept)
            )
        )
        sets = (abi().struct("strata_param_group") * max(len(groups), 1))(
            *(
                abi().make(
                    "strata_param_group",
                    name=group.name,
                    lr_scale=float(group.lr_scale),
                    weight_decay=None if group.weight_decay is None else float(group.weight_decay),
                    own_weight_decay=group.weight_decay is not None,
                )
                for group in groups
            )
        )
        opts = abi().make(
            "strata_layers_opts",
            layers=rows,
            layer_count=len(layers),
            groups=sets if groups else None,
            group_count=len(groups),
            **members,
        )
        self._kept = members  # the comm and the progress function, as long as the model lives
        abi().strata_layers_open(ctypes.byref(opened), config.pointer, ctypes.byref(opts))
        super().__init__(opened, "strata_model_close")
        self.info = facts("strata_model", "info", opened)


def _tensors(layer: Layer) -> Any:
    made = []
    for tensor in layer.tensors:
        row = abi().make(
            "strata_layer_tensor",
            name=tensor.name,
            rank=len(tensor.shape),
            group=_FROZEN if tensor.group is None else tensor.group,
            dtype=abi().value(f"STRATA_{tensor.dtype}") if tensor.dtype else None,
        )
        for i, size in enumerate(tensor.shape[: len(row.shape)]):
            row.shape[i] = size
        made.append(row)
    return (abi().struct("strata_layer_tensor") * len(made))(*made)


def _opened(
    config: Config, overrides: Mapping[str, Any] | None, max_steps: int, comm: Comm | None, allow_unknown: bool
) -> Handle:
    ranks = 0 if comm is None else comm.ranks
    lengths = {"max_steps": max_steps, "steps_later": not max_steps}
    return open_config(config, overrides, ranks=ranks, allow_unknown=allow_unknown, **lengths)


def settings_of(
    config: Config,
    overrides: Mapping[str, Any] | None = None,
    *,
    max_steps: int = 0,
    comm: Comm | None = None,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """A configuration as it would be in force."""
    with blocked(lambda: _opened(config, overrides, max_steps, comm, allow_unknown)) as opened:
        made: dict[str, Any] = json.loads(got(abi().strata_config_json, opened.pointer))
    return made


def _doubles(values: Sequence[float] | None) -> Any:
    return None if values is None else (ctypes.c_double * len(values))(*values)


class Layers(EngineHandle):
    """A model of layers, planned, and its engine.  After load() or resume(), steps: see include/strata/layers.h.

    config     DeepSpeed's file, or a dict of its keys; `overrides` replaces values of it
    evaluates  only forward passes
    allow_unknown  keys that are not known are notices
    comm       other ranks; it is closed with this
    members    further members of struct strata_layers_opts: caller_threads, scales_loss, ...
    """

    FORWARD, BACKWARD = 0, 1

    def __init__(
        self,
        config: Config,
        layers: Sequence[Layer],
        *,
        overrides: Mapping[str, Any] | None = None,
        groups: Sequence[Group] = (),
        machine: Machine | None = None,
        comm: Comm | None = None,
        evaluates: bool = False,
        max_steps: int = 0,
        overwrite: bool = False,
        allow_unknown: bool = False,
        **members: Any,
    ) -> None:
        stop = Stop()
        self._progress = stop.function

        self.given = list(layers)

        def work() -> Any:
            opened = _opened(config, overrides, max_steps, comm, allow_unknown)
            self.config: dict[str, Any] = json.loads(got(abi().strata_config_json, opened.pointer))
            use = abi().value("STRATA_USE_EVAL" if evaluates else "STRATA_USE_TRAIN")
            ends = None if comm is None else comm.pointer
            model = _Model(opened, layers, groups, use=use, comm=ends, progress=stop.function, **members)
            plan = Plan(model, (machine or Machine()).open(ends))
            if plan.refused is not None:
                raise plan.refused
            engine = self.created(plan, overwrite=overwrite)
            self.model: _Model | Model = model
            return engine

        super().__init__(stop.call(work), "strata_engine_destroy")
        self.comm = comm
        self.tensors = [self._placed(i) for i in range(abi().strata_engine_tensor_count(self.pointer))]

    def _placed(self, index: int) -> Placed:
        told = abi().make("strata_tensor_info")
        abi().strata_engine_get_tensor(self.pointer, index, ctypes.byref(told))
        return Placed(
            name=_text(told.name),
            layer=told.layer_index,
            shape=tuple(told.shape[: told.rank]),
            elems=told.elems,
            dtype=next(name for name in _DTYPES if abi().value(f"STRATA_{name}") == told.dtype),
            group=None if told.group == _FROZEN else told.group,
            weight_at=told.weight_at,
            sum_at=told.sum_at,
        )

    def close(self) -> None:
        """Engine, model and comm, in this order."""
        super().close()
        self.model.close()
        if self.comm is not None:
            self.comm.close()

    def _call(self, function: str, *arguments: Any) -> None:
        blocked(lambda: getattr(abi(), function)(self.pointer, *arguments), self.cancel)

    # --- values ---

    def load(self, fill: Fill | None = None, files: Sequence[Text] = (), **members: Any) -> None:
        """First weights: of files, of fill(tensor, first, elems, address), which writes fp32 there, or zeros."""
        raised: list[BaseException] = []

        def filled(_: Any, tensor: int, first: int, elems: int, values: Any) -> int:
            try:
                assert fill is not None
                fill(tensor, first, elems, ctypes.addressof(values.contents))
            except BaseException as error:
                raised.append(error)
                return int(abi().value("STRATA_E_CANCELLED"))
            return 0

        kept = Library.get().callback("strata_fill_fn", filled)
        names = texts(files)
        opts = abi().make("strata_load_opts", files=names, file_count=len(files), fill=kept if fill else None, **members)
        try:
            self._call("strata_engine_load_layers", ctypes.byref(opts))
        except Error:
            if raised:
                raise raised[0] from None
            raise

    def read(self, tensor: int, plane: str, out: int, *, first: int = 0, elems: int = 0, dtype: str = "F32") -> None:
        """Values of "WEIGHT" (at full precision), "MOMENT1" or "MOMENT2", to an address."""
        self._call("strata_engine_read_tensor", *self._part(tensor, plane, first, elems, dtype), out)

    def write(self, tensor: int, plane: str, values: int, *, first: int = 0, elems: int = 0, dtype: str = "F32") -> None:
        """The same from an address: master and weight, or a moment."""
        self._call("strata_engine_write_tensor", *self._part(tensor, plane, first, elems, dtype), values)

    def _part(self, tensor: int, plane: str, first: int, elems: int, dtype: str) -> tuple[int, int, int, int, int]:
        elems = elems or self.tensors[tensor].elems - first
        return tensor, abi().value(f"STRATA_PLANE_{plane}"), first, elems, abi().value(f"STRATA_{dtype}")

    def flush(self) -> None:
        """Updates that wait for the next step are made."""
        self._call("strata_engine_flush")

    def digest(self) -> tuple[str, str]:
        """Of weights and of state."""
        made = ctypes.create_string_buffer(33), ctypes.create_string_buffer(33)
        self._call("strata_engine_digest", *made)
        return made[0].value.decode(), made[1].value.decode()

    # --- a step ---

    def begin(
        self,
        *,
        evaluates: bool = False,
        micros: int = 0,
        lr: Sequence[float] | None = None,
        weight_decay: Sequence[float] | None = None,
        beta1: Sequence[float] | None = None,
        beta2: Sequence[float] | None = None,
        divisor: float = 0,
        stream: int = 0,
    ) -> float:
        """Returns the loss scale.  Rates, decays and betas (of SGD beta1 is the momentum) are those of each group.

        stream  on "cuda" the one that the caller computes on; 0: the default one
        """
        scale = ctypes.c_double()
        step = abi().make(
            "strata_layers_step", evaluates=evaluates, micros=micros, divisor=float(divisor), stream=stream or None
        )
        step.lr, step.weight_decay, step.beta1, step.beta2 = map(_doubles, (lr, weight_decay, beta1, beta2))
        abi().strata_engine_begin(self.pointer, ctypes.byref(step), ctypes.byref(scale))
        return scale.value

    def enter(self, direction: int, layer: int) -> View:
        """An ordered layer, in its turn; leave() ends it."""
        return self._view("strata_engine_enter", direction, layer)

    def leave(self) -> None:
        abi().strata_engine_leave(self.pointer)

    def use(self, direction: int, layer: int) -> View:
        """A resident layer, at any time."""
        return self._view("strata_engine_use", direction, layer)

    def _view(self, function: str, direction: int, layer: int) -> View:
        view = abi().make("strata_layer_view")
        getattr(abi(), function)(self.pointer, direction, layer, ctypes.byref(view))
        total = ctypes.cast(view.sum, ctypes.c_void_p).value
        return View(view.weights or 0, total, view.boundary, view.boundary_bytes, view.micro)

    def grad(self, tensor: int, values: int, *, first: int = 0, elems: int = 0, dtype: str = "F32") -> None:
        """Add a gradient, or a part of one, from an address."""
        row = abi().make(
            "strata_grad", tensor=tensor, dtype=abi().value(f"STRATA_{dtype}"), first=first, elems=elems, values=values
        )
        abi().strata_engine_grad(self.pointer, ctypes.byref(row), 1)

    def micro_end(self) -> None:
        abi().strata_engine_micro_end(self.pointer)

    def end(
        self,
        losses: Sequence[float] | None = None,
        divisor: float = 0,
        *,
        lr: Sequence[float] | None = None,
        weight_decay: Sequence[float] | None = None,
        beta1: Sequence[float] | None = None,
        beta2: Sequence[float] | None = None,
    ) -> Step:
        """Losses and divisor of this rank; rates, decays and betas in place of those of begin()."""
        end = abi().make("strata_layers_end", divisor=float(divisor))
        end.losses, end.lr, end.weight_decay = map(_doubles, (losses, lr, weight_decay))
        end.beta1, end.beta2 = map(_doubles, (beta1, beta2))
        return self._ended("strata_engine_end", ctypes.byref(end))

    def drop(self) -> Step:
        """The step ends as a skipped one, wherever it is."""
        return self._ended("strata_engine_drop")

    def _ended(self, function: str, *arguments: Any) -> Step:
        self._last = told = abi().make("strata_step")
        self._call(function, *arguments, ctypes.byref(told))
        return Step(told.loss, told.grad_norm, told.lr, told.loss_scale, told.skipped, told.dropped, told.seconds)

    def line(self) -> str:
        """The last step as a line of JSON (docs/json.md); once for each."""
        return got(abi().strata_engine_step_json, self.pointer, ctypes.byref(self._last))

    # --- checkpoints ---

    def save(self, note: str | None = None) -> None:
        """Under "strata.save"; returns when the next step may run."""
        opts = abi().make("strata_save_opts", note=note)
        self._call("strata_engine_save", ctypes.byref(opts))

    def saved(self, wait: bool = False) -> tuple[bool, str | None]:
        """Whether no save is under way, and the directory of the last checkpoint that is whole."""
        told = abi().make("strata_saved")
        self._call("strata_engine_saved", wait, ctypes.byref(told))
        return told.done, None if not told.steps else os.fsdecode(told.path or b"") or None

    def resume(self, path: Text) -> str:
        """Go on from a checkpoint, in place of load(); returns its note."""
        opened = abi().handle("strata_checkpoint")
        blocked(lambda: abi().strata_checkpoint_open(ctypes.byref(opened), encoded(path)))
        with Handle(opened, "strata_checkpoint_close") as checkpoint:
            self._call("strata_engine_resume", checkpoint.pointer, None)
            return _text(facts("strata_checkpoint", "info", checkpoint.pointer).note)


def _text(told: bytes | None) -> str:
    return (told or b"").decode("utf-8", "surrogateescape")
