"""A causal language model of transformers', of a family that strata knows, computed by strata's own decoder: compute="strata".

A call of the engine in training runs a micro-batch's forward, and gives its loss; engine.backward(loss) its backward, by the
gradient of that loss; step() clips and updates.  A thread is in the library for the time of a step and is fed by these calls.
The module keeps its weights, which follow the decoder's before what reads them: Engine.flush().  PyTorch computes what is no
training: evaluation, generation.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import json
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from .._calls import Stop, _signals_blocked, blocked
from .._handles import Config, EngineHandle, Machine, Model, Plan, open_config
from .._library import Library
from .._report import abi, got
from .._scratch import own_directory, removing
from ..errors import Error
from ..layers import Layers, Step
from .hooks import Hook, Overlap
from .pages import DTYPES, Kept, pieces_of, put, read

if TYPE_CHECKING:
    from .engine import Engine

IGNORED = -100
_FORWARD, _BACKWARD, _END = range(3)


class NotPlain(ValueError):
    """What strata's decoder does not compute, by name."""


def not_plain(module: torch.nn.Module, groups: Sequence[Mapping[str, Any]]) -> str | None:
    """Why PyTorch has to compute this module; None: nothing is known."""
    import transformers

    if not isinstance(module, transformers.PreTrainedModel) or not type(module).__module__.startswith("transformers.models."):
        return f"{type(module).__name__} is no model of transformers'"
    text = module.config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts")):
        return f"{type(module).__name__} has experts, in stacks where strata's decoder has them one by one"
    frozen = next((name for name, p in module.named_parameters() if not p.requires_grad), None)
    trained = {p for group in groups for p in group["params"]}
    left = next((name for name, p in module.named_parameters() if p not in trained), None)
    if frozen is not None or left is not None:
        return f"{frozen or left} is not trained"
    for name, inner in module.named_modules():
        if isinstance(inner, torch.nn.Dropout) and inner.p > 0:
            return f"{name} drops out {inner.p:g}, by other random numbers than PyTorch's"
    drops = float(getattr(module.config, "attention_dropout", 0) or 0)
    return f"attention_dropout is {drops:g}" if drops > 0 else hooked(module)


def hooked(module: torch.nn.Module) -> str | None:
    """What sees or changes what the module's parts compute."""
    for name, inner in module.named_modules():
        sets = (inner._forward_hooks, inner._forward_pre_hooks, inner._backward_hooks, inner._backward_pre_hooks)
        if any(not isinstance(hook, Hook) for hooks in sets for hook in hooks.values()):
            return f"{name or 'the module'} has hooks"
        if "forward" in vars(inner):
            return f"{name or 'the module'} has a forward() of its own"
    return None


def decay_of(module: torch.nn.Module, groups: Sequence[Mapping[str, Any]], otherwise: float) -> tuple[float, bool]:
    """The one weight decay of these groups, and whether it is that of all parameters; else of matrices."""
    decays = {p: float(group.get("weight_decay", otherwise)) for group in groups for p in group["params"]}
    most = max(decays.values())
    if set(decays.values()) == {most}:
        return most, True
    odd = next((name for name, p in module.named_parameters() if decays[p] != (most if p.dim() == 2 else 0)), None)
    if odd is not None:
        raise NotPlain(f"weight_decay of {odd}: it is that of all parameters, or of all matrices and 0 elsewhere")
    return most, False


def _one(name: str, groups: Sequence[float]) -> float:
    """Of all groups; weight decay is 0 in some."""
    if name == "weight_decay":
        return max(groups)
    if len(set(groups)) > 1:
        raise ValueError(f"{name} of {sorted(set(groups))} in one step: strata's decoder has one; compute='torch' has several")
    return groups[0]


class Decoder(Layers):
    """The engine of a decoder, with the calls of an engine of layers; a step is computed by forward() and weigh()."""

    def __init__(
        self,
        module: torch.nn.Module,
        config: Config,
        seq_len: int,
        *,
        overrides: Mapping[str, Any],
        machine: Machine | None,
        max_steps: int,
        allow_unknown: bool,
    ) -> None:
        stop = Stop()
        self._progress, self.comm, self.given = stop.function, None, []
        self._cond = threading.Condition()
        self._turn: Any = None  # what the library waits for: a struct strata_turn
        self._result: Any = None  # of the step that has ended
        self._running = False
        made, owner = own_directory("strata-decoder-", tempfile.gettempdir())
        self._remove = removing(self, made, owner)
        directory = os.path.join(made, "model")  # what a checkpoint has beside its weights comes from there
        module.config.save_pretrained(directory)  # type: ignore[operator, union-attr]

        def open_model(use: str, path: str) -> Model:
            lengths = {"max_steps": max_steps, "steps_later": not max_steps}
            opened = open_config(config, overrides, allow_unknown=allow_unknown, **lengths)
            self.config: dict[str, Any] = json.loads(got(abi().strata_config_json, opened.pointer))
            return Model(opened, path, use, seq_len=seq_len, progress=stop.function)

        blocked(lambda: open_model("PLAN", os.path.join(directory, "config.json"))).close()  # before its weights are written
        from safetensors import SafetensorError  # transformers, whose module it is, brings it

        try:
            module.save_pretrained(directory)  # type: ignore[operator]
        except (OSError, SafetensorError) as error:
            self._remove()
            raise NotPlain(f"the weights do not go through {tempfile.gettempdir()} ({error}): set TMPDIR") from error

        def work() -> Any:
            model = open_model("TRAIN", directory)
            plan = Plan(model, (machine or Machine()).open())
            if plan.refused is not None:
                raise plan.refused
            engine = self.created(plan, overwrite=True)  # Saves looks whose they are
            abi().strata_engine_load(engine)
            self.model = model
            return engine

        super(EngineHandle, self).__init__(stop.call(work), "strata_engine_destroy")
        for weights in Path(directory).glob("*.safetensors*"):
            weights.unlink()
        self.tensors = [self._placed(i) for i in range(abi().strata_engine_tensor_count(self.pointer))]
        try:
            self.kept = self._match(module)
        except BaseException:
            self.close()
            raise

    def _match(self, module: torch.nn.Module) -> list[Kept]:
        named = dict(module.named_parameters())
        for t in self.tensors:
            if t.name not in named or tuple(named[t.name].shape) != t.shape:
                raise NotPlain(f"{type(module).__name__} has no parameter {t.name} of shape {t.shape}")
        odd = next((name for name in named if name not in {t.name for t in self.tensors}), None)
        if odd is not None:
            raise NotPlain(f"{odd} of {type(module).__name__} is none of the family's")
        made = [Kept(t.name, named[t.name], 0, True, index=i) for i, t in enumerate(self.tensors)]
        for k, t in zip(made, self.tensors):
            k.parameter.grad = None
            k.parameter.data = torch.empty(t.shape, dtype=DTYPES[t.dtype])
            k.address = k.parameter.data_ptr()
        self._into = [weakref.ref(k.parameter) for k in made]
        self.flush()
        for k in made:
            k.version = k.parameter._version
        return made

    def flush(self) -> None:
        """Updates are made, and the module has the weights."""
        super().flush()
        for i, known in enumerate(self._into):
            parameter = known()
            for first, weight in pieces_of(parameter.data) if parameter is not None else ():
                put(read(self, i, first, weight.numel()), weight, trained=True)

    # --- a step ---

    def begin(self, **_: Any) -> float:
        """The loss scale is the library's own: gradients here have none."""
        self._turn = self._result = None
        self._running = True
        with _signals_blocked():
            threading.Thread(target=self._work, name="strata-step", daemon=True).start()
        return 1.0

    def _work(self) -> None:
        library = Library.get()
        feed = library.callback("strata_feed_fn", self._told)
        self._last = told = abi().make("strata_step")
        result: Any
        try:
            with library.collecting():
                abi().strata_engine_step_fed(self.pointer, feed, None, ctypes.byref(told))
            result = Step(told.loss, told.grad_norm, told.lr, told.loss_scale, told.skipped, told.dropped, told.seconds)
        except BaseException as error:
            result = error
        with self._cond:
            self._result = result
            self._cond.notify_all()

    def _told(self, _: Any, turn: Any) -> int:
        with self._cond:
            self._turn = turn.contents
            self._cond.notify_all()
            while self._turn is not None:
                self._cond.wait()
        return 0

    def _await(self) -> Any:
        """The next turn; None: the step has ended."""
        with self._cond:
            while self._turn is None and self._result is None:
                self._cond.wait()
            return self._turn

    def _answered(self) -> None:
        with self._cond:
            self._turn = None
            self._cond.notify_all()

    def _failed(self) -> BaseException:
        self._running = False
        Library.get().tell()
        return self._result if isinstance(self._result, BaseException) else RuntimeError("the step has ended early")

    def taken(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Callable[[], Any]:
        """What a call of the module in training does, and returns; else NotPlain."""
        told = hooked(module)
        if told is not None:
            raise NotPlain(f"{told}, which strata's decoder does not see; compute='torch' does")
        shape = int(self.model.info.seq_len), int(self.model.info.micro_batch)
        rows, targets, divisor, as_tuple = batch_of(module, *shape, args, kwargs)

        def call() -> Any:
            total = self.forward(rows, targets)
            loss = _Loss.apply(torch.zeros((), requires_grad=True), total, divisor, self.weigh)
            return (loss,) if as_tuple else _output_class()(loss=loss)

        return call

    def forward(self, rows: torch.Tensor, targets: torch.Tensor) -> float:
        """A micro-batch's losses, added up.  [rows, tokens], at most as many as the engine was made for."""
        turn = self._await()
        if turn is not None and turn.kind == _BACKWARD:
            raise RuntimeError("a second forward of a step before backward(): strata's decoder keeps one micro-batch")
        if turn is not None and turn.kind == _END:
            raise RuntimeError(f"more micro-batches than gradient_accumulation_steps, {self.model.info.grad_accum}")
        if turn is not None:
            self._fill(turn, rows, targets)
            self._answered()
            turn = self._await()
        if turn is None:
            raise self._failed()
        return float(turn.loss)

    def _fill(self, turn: Any, rows: torch.Tensor | None = None, targets: torch.Tensor | None = None) -> None:
        shape = int(self.model.info.micro_batch), int(self.model.info.seq_len)
        for address, values, empty in ((turn.tokens, rows, 0), (turn.targets, targets, IGNORED)):
            memory = (ctypes.c_int32 * (shape[0] * shape[1])).from_address(ctypes.addressof(address.contents))
            into = torch.frombuffer(memory, dtype=torch.int32).view(shape)
            into.fill_(empty)
            if values is not None:
                into[: values.shape[0], : values.shape[1]] = values

    def check_loss(self, module: torch.nn.Module, loss: torch.Tensor) -> None:
        """Raises for one that PyTorch has computed, whose gradients nobody would take."""
        nodes = [loss.grad_fn] if isinstance(loss, torch.Tensor) else [None]
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            if node is None or type(node).__name__ == f"{_Loss.__name__}Backward":
                return  # without a graph PyTorch says so itself
            following = [one for one, _ in node.next_functions if one is not None and one not in seen]
            nodes += following
            seen.update(following)
        why = "it is of no call of the engine in training" if module.training else "the module is in evaluation mode"
        raise RuntimeError(
            f"backward() of a loss that PyTorch has computed, as {why}: call engine.train() before a training step's "
            "forward, or take compute='torch'"
        )

    def weigh(self, weight: float) -> None:
        """Backward of the micro-batch, whose losses' sum counts so much; returns at once."""
        turn = self._await() if self._running else None
        if turn is None or turn.kind != _BACKWARD:
            raise RuntimeError("backward() a second time, or of a loss of an earlier step")
        turn.weight = weight
        self._answered()

    def _finish(self, drop: bool, rates: Mapping[str, float] = MappingProxyType({})) -> Step:
        while (turn := self._await()) is not None:
            if turn.kind == _FORWARD:
                self._fill(turn)
            elif turn.kind == _BACKWARD:
                turn.weight = 0.0
            else:
                turn.drop = drop
                for name, value in rates.items():
                    setattr(turn, name, value)
            self._answered()
        self._running = False
        Library.get().tell()
        if isinstance(self._result, BaseException):
            raise self._result
        made: Step = self._result
        return made

    def end(self, losses: Sequence[float] | None = None, divisor: float = 0, **rates: Any) -> Step:
        return self._finish(False, {name: _one(name, groups) for name, groups in rates.items() if groups is not None})

    def drop(self) -> Step:
        if not self._running:
            raise Error("E_INVAL", "no step is under way", exit_code=2)
        return self._finish(True)

    def micro_end(self) -> None:
        """Is known by itself."""

    def close(self) -> None:
        if self._running:
            with suppress(Error):
                self.drop()
        super().close()
        self._remove()


class Behind(Overlap):
    """The module's weights are its copy of the decoder's, which is behind after a step."""

    def await_weights(self, engine: Engine, layers: frozenset[int] | None) -> None:
        if self.pending and engine._inside:
            raise RuntimeError(
                "weights are read within a step, when the module has those before the last one: flush() drops it"
            )
        if self.pending:
            engine.flush()


class _Loss(torch.autograd.Function):
    """A loss whose backward is the decoder's."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, total: float, divisor: float, weigh: Callable[[float], None]) -> torch.Tensor:
        ctx.divisor, ctx.weigh = divisor, weigh
        return torch.tensor(total / divisor if divisor > 0 else float("nan"))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        ctx.weigh(float(grads[0]) / ctx.divisor if ctx.divisor > 0 else 0.0)
        return None, None, None, None


def _counts(targets: torch.Tensor) -> torch.Tensor:
    """Where a token has an effect on a loss: up to the last target of its sequence."""
    return (targets != IGNORED).flip(1).cumsum(1).flip(1) > 0


def batch_of(module: torch.nn.Module, seq_len: int, micro_batch: int, args: Any, kwargs: Any) -> tuple[Any, Any, float, bool]:
    """Tokens, targets and the loss's divisor of a call of the module, and whether it wants a tuple; else NotPlain."""
    bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    given = {**bound.pop("kwargs", {}), **bound}
    rows, labels, mask = given.get("input_ids"), given.get("labels"), given.get("attention_mask")
    for name in ("input_ids", "labels"):
        if not isinstance(given.get(name), torch.Tensor) or given[name].dim() != 2:
            raise NotPlain(f"{name} is what a training step needs, [sequences, tokens]")
    assert rows is not None and labels is not None
    if rows.shape[0] > micro_batch or rows.shape[1] > seq_len:
        sizes = f"{micro_batch} (train_micro_batch_size_per_gpu) of {seq_len} tokens (strata.seq_len)"
        raise NotPlain(
            f"a micro-batch of {rows.shape[0]} sequences of {rows.shape[1]} tokens: the decoder was made for {sizes}"
        )
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if mask is not None:
        real = mask.to(torch.bool)
        if mask.dim() != 2 or bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise NotPlain("attention_mask: what is padded is at the end of a sequence, and there are no masks of other kinds")
        if bool(((labels != IGNORED) & ~real).any()):
            raise NotPlain(f"labels: what attention_mask leaves out has labels of {IGNORED}")
    positions = given.get("position_ids")
    if positions is not None and not bool((positions == torch.arange(rows.shape[1])).all()):
        raise NotPlain("position_ids: tokens of a sequence are counted from 0")
    padding = getattr(module.get_input_embeddings(), "padding_idx", None)  # type: ignore[operator]
    if padding is not None and bool(((rows == padding) & _counts(targets)).any()):
        raise NotPlain(
            f"input_ids: token {padding} pads, and stands before a label: PyTorch leaves its embedding's gradient out"
        )
    count = given.get("num_items_in_batch")
    plain = {"self", "input_ids", "labels", "attention_mask", "position_ids", "num_items_in_batch", "return_dict", "use_cache"}
    odd = next((name for name, v in given.items() if name not in plain and not (v is None or v is False or v == 0)), None)
    if odd is not None:
        raise NotPlain(f"{odd} is none of what strata's decoder takes in training")
    divisor = float((targets != IGNORED).sum()) if count is None else float(count)
    return rows, targets, divisor, given.get("return_dict") is False


@functools.cache
def _output_class() -> Any:
    import transformers

    @dataclass
    class DecoderOutput(transformers.utils.ModelOutput):  # type: ignore[misc, name-defined]
        """Logits would take more room than all else that training needs."""

        loss: torch.Tensor | None = None

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{name}: strata's decoder gives a loss alone in training; compute='torch' gives all else")

    return DecoderOutput


def decoder_of(
    module: torch.nn.Module,
    config: Config,
    settings: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    *,
    compute: str | None,
    seq_len: int,
    torch_only: str | None,
    overrides: Mapping[str, Any],
    **what: Any,
) -> Decoder | None:
    """The decoder that `compute` asks for, or the configuration; None: PyTorch computes.  torch_only: why it has to."""
    compute = compute or settings["strata"].get("compute", "torch")
    if compute == "torch":
        return None
    if compute not in ("strata", "auto"):
        raise ValueError(f"compute is {compute!r}: 'torch', 'strata' or 'auto'")
    seq_len = seq_len or settings["strata"].get("seq_len", 0)
    if seq_len == 0:
        torch_only = "nobody has said how many tokens a sequence has: seq_len=, or strata.seq_len"
    reason = torch_only or not_plain(module, groups)
    own: dict[str, Any] = {"strata.accumulation": "horizontal"}
    if not settings.get("fp16", {}).get("enabled"):
        own["bf16.enabled"] = bool(settings.get("bf16", {}).get("enabled"))
    try:
        if reason is not None:
            raise NotPlain(reason)
        otherwise = settings["optimizer"]["params"].get("weight_decay", 0)
        own["optimizer.params.weight_decay"], own["strata.decay_all"] = decay_of(module, groups, otherwise)
        made = Decoder(module, config, seq_len, overrides={**overrides, **own}, **what)
    except (Error, NotPlain) as error:
        if compute == "strata":
            raise NotPlain(f"compute strata: {error}; compute='torch' takes any module") from error
        logging.getLogger("strata").info("compute auto: PyTorch, since %s", error)
        return None
    logging.getLogger("strata").info("compute %s: strata's decoder", compute)
    return made
