"""A training run, step by step."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ._abi import Text, encoded
from ._calls import Handle, Stop, blocked
from ._handles import Config, Data, Engine, Machine, Model, Plan, facts, has_borders, open_config
from ._lines import Lines
from ._report import abi, got
from .errors import Error


@dataclass
class _Run:
    """What train() was asked for, opened: strata/train.h."""

    training: Handle
    engine: Engine
    stop: Stop
    out: Handle | None
    saves: bool
    lines: Lines | None  # "strata.metrics"
    kept: tuple[Handle | None, ...]  # borrowed by the run
    finished: bool = False

    @property
    def info(self) -> Any:
        return facts("strata_training", "info", self.training.pointer)

    def step(self) -> None:
        blocked(lambda: abi().strata_training_step(self.training.pointer, None), self.engine.cancel)

    def evaluate(self) -> None:
        """If it is due."""
        self.stop.call(lambda: abi().strata_training_evaluate(self.training.pointer))

    def save(self) -> None:
        """If it is due."""
        blocked(lambda: abi().strata_training_save(self.training.pointer, False, 0))

    def metrics(self) -> dict[str, Any]:
        line = got(abi().strata_training_json, self.training.pointer)
        if self.lines is not None:
            self.lines.step(lambda: self.engine.header(self.info.steps), line)
        return dict(json.loads(line))

    def finish(self) -> None:
        """The last checkpoint, and the model, unless the run goes on from that checkpoint."""
        if self.finished:
            return
        self.finished = True
        blocked(lambda: abi().strata_training_finish(self.training.pointer, 0))
        info = self.info
        if self.out is not None and (info.done >= info.steps or not self.saves):
            out = self.out.release()
            blocked(lambda: abi().strata_engine_export(self.engine.pointer, out))

    def close(self) -> None:
        if self.lines is not None:
            self.lines.end()
        self.training.close()
        if not self.engine.closed:
            blocked(self.engine.close)


def train(
    model: Text,
    data: Text | Sequence[Text],
    *,
    steps: int = 0,
    epochs: float = 0,
    config: Config = None,
    overrides: Mapping[str, Any] | None = None,
    seq_len: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    eval_data: Text | None = None,
    eval_every: int = 0,
    early_stop: int = 0,
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
    """Train, a step at each turn of the loop; gives the step's metrics, the line of `strata train --json`.

        for step in strata.train("nano", "book.txt", steps=100, config="ds_config.json", out="model"):
            print(step["step"], step["loss"])

    model       a preset, a directory of Hugging Face's, or a checkpoint
    data        token files, or texts (.txt) and rows (.json, .jsonl)
    steps, epochs  one of them: how long the run is
    eval_data   is evaluated every `eval_every` steps and after the last one, whose metrics have "eval_loss"
    early_stop  the run ends after so many evaluations in a row without a lower loss
    out         directory that the trained model is written to at the end
    save        directory of checkpoints: every `save_every` steps and at the end; resume: go on from the newest there

    Nothing is opened before the first turn.  Ctrl-C raises KeyboardInterrupt when the step in progress has ended, a second one
    at once.  Leaving the loop early, by it or by break, ends the run as after its last step: with a checkpoint where there
    is `save`, from which it goes on, else with `out`.
    """
    if (steps > 0) == (epochs > 0):
        raise ValueError(f"steps is {steps} and epochs is {epochs}: one of them says how long the run is")
    paths = [data] if isinstance(data, (str, bytes, os.PathLike)) else list(data)
    held = [eval_data] if eval_data is not None else []
    stop = Stop()
    changes = dict(overrides or {})
    if save is not None:
        changes["strata.save"] = encoded(save).decode("utf-8", "surrogateescape")

    def work() -> _Run:
        opened = open_config(config, changes, max_steps=steps, steps_later=steps == 0)
        says = facts("strata_config", "info", opened.pointer)
        lines = Lines(os.fsdecode(says.metrics), overwrite) if says.metrics else None
        if resume and not says.save:
            raise Error(
                "E_INVAL",
                "resume: there is no directory of checkpoints to go on from",
                exit_code=2,
                key="strata.save",
                remedy="name it by save, or by strata.save in the configuration",
            )
        begun = _newest(says.save) if resume else None
        what = Model(
            opened,
            model,
            "TRAIN",
            seq_len=seq_len,
            seed=seed,
            documents=any(has_borders(some, layout) for some in (paths, held) if some),
            tokenizer=tokenizer,
            chat_template=chat_template,
            saved_checkpoints=0 if begun is None else facts("strata_checkpoint", "info", begun.pointer).kept,
            progress=stop.function,
        )
        plan = Plan(what, (machine or Machine()).open())
        if plan.refused is not None:
            raise plan.refused
        how = {"chat_template": chat_template, "layout": layout, "seed": seed}
        trained = Data(what, paths, **how)
        held_out = Data(what, held, **how) if held else None
        count = steps or math.ceil(epochs * math.ceil(len(trained) / what.info.world_sequences))
        if not steps:
            abi().strata_model_set_steps(what.pointer, count)
        exported = None
        if out is not None:
            pointer, opts = abi().handle("strata_export"), abi().make("strata_export_opts", overwrite=overwrite)
            abi().strata_export_open(ctypes.byref(pointer), what.pointer, encoded(out), ctypes.byref(opts))
            exported = Handle(pointer, "strata_export_abort")
        abi().strata_plan_measure(plan.pointer)
        engine = Engine(plan, what, overwrite=overwrite)
        asked = abi().make(
            "strata_training_opts",
            data=trained.pointer,
            eval_data=None if held_out is None else held_out.pointer,
            order=abi().value(f"STRATA_DATA_{_ORDERS[steps == 0, shuffle]}"),
            seed=seed,
            steps=count,
            eval_every=eval_every,
            early_stop=early_stop,
            save_every=save_every or says.save_every,
            **{"from": None if begun is None else begun.pointer},
        )
        training = abi().handle("strata_training")
        abi().strata_training_open(ctypes.byref(training), engine.pointer, ctypes.byref(asked))
        run = Handle(training, "strata_training_close")
        return _Run(run, engine, stop, exported, bool(says.save), lines, (trained, held_out))

    return _turns(lambda: stop.call(work))


_ORDERS = {  # by whether a run has epochs, and whether they are shuffled
    (False, True): "SHUFFLED",
    (False, False): "CYCLE",
    (True, True): "EPOCHS",
    (True, False): "EPOCHS_IN_ORDER",
}


def _turns(open_run: Callable[[], _Run]) -> Iterator[dict[str, Any]]:
    run = open_run()
    try:
        run.evaluate()  # of a run that goes on, one that was cut short
        info = run.info
        while info.done < info.steps:
            run.step()
            run.evaluate()
            metrics = run.metrics()
            run.save()
            info = run.info
            if info.done >= info.steps:
                run.finish()
            yield metrics
    except (GeneratorExit, KeyboardInterrupt):
        if not run.engine.closed:  # as it is when the interpreter exits
            with suppress(Error):  # of one that a second Ctrl-C has ended, or that has made no step
                run.finish()
        raise
    finally:
        run.close()


def _newest(save: bytes) -> Handle | None:
    """The newest checkpoint in a directory, if there is one."""
    found = ctypes.c_bool()
    with suppress(Error):  # there is no such directory yet
        abi().strata_verify_find(save, ctypes.byref(found))
    if not found.value:
        return None
    opened = abi().handle("strata_checkpoint")
    abi().strata_checkpoint_open(ctypes.byref(opened), save)
    return Handle(opened, "strata_checkpoint_close")
