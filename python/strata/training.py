"""A training run, step by step."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ._abi import Text, encoded
from ._calls import Handle, Stop, blocked
from ._handles import Config, Data, Engine, Machine, Model, Plan, facts, has_borders, open_config
from ._report import abi
from .errors import Error


@dataclass
class _Run:
    """What train() was asked for, opened."""

    model: Model
    data: Data
    held_out: Data | None
    plan: Plan
    engine: Engine
    stop: Stop
    out: Handle | None
    saves: bool
    steps: int
    seed: int
    documents: bool

    def __post_init__(self) -> None:
        shape = self.model.info
        self._tokens = (ctypes.c_int32 * (shape.step_sequences * shape.seq_len))()
        self._targets = type(self._tokens)()
        self._positions = type(self._tokens)() if self.documents else None
        self._planned = facts("strata_plan", "info", self.plan.pointer)
        self._tokens_total = self.engine.info.sequences * shape.seq_len

    @property
    def done(self) -> int:
        info = self.engine.info
        return int(info.steps + info.skipped_steps)

    def step(self) -> dict[str, Any]:
        """The next one; its metrics."""
        shape, order = self.model.info, abi().value("STRATA_DATA_SHUFFLED")
        result = abi().make("strata_step")

        def work() -> None:
            abi().strata_data_read(
                self.data.pointer,
                order,
                self.seed,
                self.engine.info.sequences,
                shape.step_sequences,
                self._tokens,
                self._targets,
                self._positions,
            )
            abi().strata_engine_step(self.engine.pointer, self._tokens, self._targets, self._positions, ctypes.byref(result))

        blocked(work, self.engine.cancel)
        self._tokens_total += result.tokens
        return self._metrics(result)

    def _metrics(self, result: Any) -> dict[str, Any]:
        planned, lanes = self._planned, self._lanes()
        rate = result.tokens / result.seconds if result.seconds > 0 else 0.0
        passed = self.engine.info.sequences / len(self.data)
        return {
            "step": self.done,
            "epoch": passed,
            "loss": _number(result.loss),
            "bits_per_byte": _number(abi().strata_data_bits_per_byte(self.data.pointer, result.loss)),
            "grad_norm": _number(result.grad_norm),
            "lr": result.lr,
            "loss_scale": result.loss_scale,
            "skipped": result.skipped,
            "weights_overflowed": result.weights_overflowed,
            "tokens": result.tokens,
            "tokens_total": self._tokens_total,
            "tokens_per_second": rate,
            "mfu": planned.token_flops * rate / planned.device_flops if planned.device_flops > 0 else None,
            "step_seconds": result.seconds,
            "hardware_bound_seconds": planned.hardware_bound_seconds or None,
            "schedule_bound_seconds": planned.schedule_bound_seconds or None,
            "time_ms": {part: getattr(result, f"{part}_ms") for part in ("forward", "backward", "stall", "other")},
            "busy_ms": dict(zip(lanes, result.busy_ms)),
            "stall_ms": dict(zip(lanes, result.lane_stall_ms)),
            "bytes": {part: getattr(result, f"{part}_bytes") for part in ("upload", "download", "read", "write", "comm")},
        }

    @staticmethod
    def _lanes() -> list[str]:
        return [abi().strata_lane_name(lane).decode() for lane in range(abi().value("STRATA_LANE_COUNT"))]

    def evaluate(self, held_out: Data) -> dict[str, Any]:
        result = abi().make("strata_eval")
        self.stop.call(lambda: abi().strata_engine_eval_data(self.engine.pointer, held_out.pointer, ctypes.byref(result)))
        return {"eval_loss": _number(result.loss), "eval_bits_per_byte": _number(result.bits_per_byte)}

    def save(self, asked: bool) -> None:
        """Make a checkpoint, if one is due."""
        due = ctypes.c_bool()
        if not self.saves:
            return
        abi().strata_engine_save_due(self.engine.pointer, asked, ctypes.byref(due))
        if not due.value:
            return
        opts = abi().make(
            "strata_save_opts",
            data=self.data.pointer,
            data_seed=self.seed,
            data_order=abi().value("STRATA_DATA_SHUFFLED"),
        )
        blocked(lambda: abi().strata_engine_save(self.engine.pointer, ctypes.byref(opts)))

    def finish(self) -> None:
        """The last checkpoint, and of a run that has had all its steps the model."""
        self.save(True)
        saved = abi().make("strata_saved")
        blocked(lambda: abi().strata_engine_saved(self.engine.pointer, True, ctypes.byref(saved)))
        if self.done == self.steps and self.out is not None:
            abi().strata_engine_check(self.engine.pointer)
            pointer = self.out.release()
            blocked(lambda: abi().strata_engine_export(self.engine.pointer, pointer))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def train(
    model: Text,
    data: Text | Sequence[Text],
    *,
    steps: int,
    config: Config = None,
    overrides: Mapping[str, Any] | None = None,
    seq_len: int = 0,
    seed: int = 0,
    eval_data: Text | None = None,
    eval_every: int = 0,
    out: Text | None = None,
    save: Text | None = None,
    save_every: int = 0,
    resume: bool = False,
    tokenizer: Text | None = None,
    chat_template: Text | None = None,
    layout: str | None = None,
    overwrite: bool = False,
    machine: Machine | None = None,
) -> Iterator[dict[str, Any]]:
    """Train, a step at each turn of the loop; gives the step's metrics with the keys of `strata train --json`.

        for step in strata.train("nano", "book.txt", steps=100, config="ds_config.json", out="model"):
            print(step["step"], step["loss"])

    model      a preset, a directory of Hugging Face's, or a checkpoint
    data       token files, or texts (.txt) and rows (.json, .jsonl)
    eval_data  is evaluated every `eval_every` steps and after the last one, whose metrics have "eval_loss"
    out        directory that the trained model is written to after the last step
    save       directory of checkpoints: every `save_every` steps and at the end; resume: go on from the newest

    Nothing is opened before the first turn.  Ctrl-C raises KeyboardInterrupt when the step in progress has ended, a second
    one at once.  Leaving the loop early, by it or by break, makes a checkpoint where there is `save`, and no `out`.
    """
    paths = [data] if isinstance(data, (str, bytes, os.PathLike)) else list(data)
    stop = Stop()
    changes = dict(overrides or {})
    if save is not None:
        changes["strata.save"] = encoded(save).decode("utf-8", "surrogateescape")
    if save_every:
        changes["strata.save_every"] = save_every
    settings = {"tokenizer": tokenizer, "chat_template": chat_template}

    def work() -> _Run:
        opened = open_config(config, changes, max_steps=steps)
        says = facts("strata_config", "info", opened.pointer)
        held = [eval_data] if eval_data is not None else []
        documents = has_borders(paths, layout) or any(has_borders([path], layout) for path in held)
        what = Model(
            opened, model, "TRAIN", seq_len=seq_len, seed=seed, documents=documents, progress=stop.function, **settings
        )
        plan = Plan(what, (machine or Machine()).open())
        if plan.refused is not None:
            raise plan.refused
        texts_opts = {"chat_template": chat_template, "layout": layout, "seed": seed}
        trained = Data(what, paths, **texts_opts)
        held_out = Data(what, held, **texts_opts) if held else None
        exported = None
        if out is not None:
            pointer, opts = abi().handle("strata_export"), abi().make("strata_export_opts", overwrite=overwrite)
            abi().strata_export_open(ctypes.byref(pointer), what.pointer, encoded(out), ctypes.byref(opts))
            exported = Handle(pointer, "strata_export_abort")
        abi().strata_plan_measure(plan.pointer)
        engine = Engine(plan, what, overwrite=overwrite)
        _load(engine, says.save if resume else b"", trained, seed)
        if says.save:
            rule = abi().make("strata_save_rule", every=says.save_every, eval_every=eval_every, steps=steps)
            abi().strata_engine_save_when(engine.pointer, ctypes.byref(rule))
        return _Run(what, trained, held_out, plan, engine, stop, exported, bool(says.save), steps, seed, documents)

    if steps < 1:
        raise ValueError(f"steps is {steps}: a run has at least one")
    return _turns(lambda: stop.call(work), eval_every)


def _turns(open_run: Callable[[], _Run], eval_every: int) -> Iterator[dict[str, Any]]:
    run = open_run()
    try:
        while run.done < run.steps:
            metrics = run.step()
            last = run.done >= run.steps
            if run.held_out is not None and (last or (eval_every and run.done % eval_every == 0)):
                metrics.update(run.evaluate(run.held_out))
            run.save(last)
            if last:
                run.finish()
            yield metrics
    except (GeneratorExit, KeyboardInterrupt):
        if not run.engine.closed:  # as it is when the interpreter exits
            with suppress(Error):  # of one that a second Ctrl-C has ended
                run.finish()
        raise
    finally:
        run.engine.close()


def _load(engine: Engine, save: bytes, data: Data, seed: int) -> None:
    """The model's weights, or the newest checkpoint in a directory that has some."""
    found = ctypes.c_bool()
    if save:
        opts = abi().make("strata_resume_opts", data=data.pointer, data_seed=seed)
        try:
            abi().strata_verify_find(save, ctypes.byref(found))
        except Error as error:
            if error.status != "E_INPUT":  # there is none yet
                raise
    if not found.value:
        abi().strata_engine_load(engine.pointer)
        return
    opened = abi().handle("strata_checkpoint")
    abi().strata_checkpoint_open(ctypes.byref(opened), save)
    with Handle(opened, "strata_checkpoint_close") as checkpoint:
        abi().strata_engine_resume(engine.pointer, checkpoint.pointer, ctypes.byref(opts))
