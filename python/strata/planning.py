"""What a run would need, which configuration a machine should take, and what each value of a configuration means."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._abi import Text, texts
from ._calls import Handle, Stop, blocked
from ._handles import Config, Machine, Model, Plan, _words, config_opts, model_opts, open_config
from ._report import Report, Table, abi, got, printed
from ._said import in_python
from .errors import Error

Progress = Callable[[str, int, int], object]


def plan(
    model: Text,
    config: Config = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    seq_len: int = 0,
    steps: int = 0,
    measure: bool = True,
    progress: Progress | None = None,
) -> Report:
    """What a training run would need on each tier and how fast it can be: the keys of `strata plan --json`.

    model      a preset, a directory of Hugging Face's, its config.json, or a published model's name
    config     DeepSpeed's configuration: a file or a dict
    overrides  values that replace it: {"optimizer.params.lr": 1e-4}
    machine    default: this one
    steps      of the run, for the bytes that it writes to drives
    measure    this machine's rates, which takes two seconds once an hour; without them there are no bounds

    A run that does not fit is an answer, not an error: its "fits" is false, and the text says what would help.
    """
    stop = Stop(progress)

    def work() -> Report:
        what = machine or Machine()
        opened = open_config(config, overrides, max_steps=steps, ranks=what.ranks)
        made = Plan(Model(opened, model, "PLAN", seq_len=seq_len, progress=stop.function), what.open())
        if made.refused is None and (measure or what.file is not None or what.gpu is not None):
            abi().strata_plan_measure(made.pointer)
        opts = abi().make("strata_plan_report_opts", steps=steps)
        values = json.loads(got(abi().strata_plan_json, made.pointer, ctypes.byref(opts)))
        text = printed(lambda file: abi().strata_plan_print(made.pointer, ctypes.byref(opts), file))
        return Report(values, text if made.refused is None else f"{text}\n{made.refused}\n")

    return stop.call(work)


def advise(
    model: Text,
    *,
    machine: Machine | None = None,
    overrides: Mapping[str, Any] | None = None,
    seq_len: int = 0,
    batch_tokens: int = 0,
    tokens: float = 0,
    steps: int = 0,
    epochs: float = 0,
    data: Sequence[Text] = (),
    progress: Progress | None = None,
) -> Report:
    """Which configuration a machine should train a model with: the keys of `strata plan --json` without a configuration.

    overrides     what limits the machine: strata.device_memory, strata.host_memory, strata.threads, strata.nvme
    batch_tokens  of a step of all ranks; 0: 131072
    tokens, steps, epochs  how long the run is, the first that is given; epochs are passes over the token files `data`

    Its "config" is what DeepSpeed's file should say, its "plan" what that would need; "fits" is false if none does.
    """
    stop = Stop(progress)

    def work() -> Report:
        advice, opened = abi().handle("strata_advice"), (machine or Machine()).open()
        asked = model_opts(model, "PLAN", seq_len=seq_len, progress=stop.function)
        words = _words(overrides)
        opts = abi().make(
            "strata_advice_opts",
            model=ctypes.pointer(asked),
            machine=opened.pointer,
            overrides=texts(words),
            override_count=len(words),
            batch_tokens=batch_tokens,
            data=texts(data),
            data_count=len(data),
            tokens=tokens,
            steps=steps,
            epochs=epochs,
        )
        refused = ""
        try:
            abi().strata_advice_make(ctypes.byref(advice), ctypes.byref(opts))
        except Error as error:
            if not advice:
                raise
            refused = f"{error}\n"
        made = Handle(advice, "strata_advice_destroy")
        values = json.loads(got(abi().strata_advice_json, made.pointer))
        return Report(values, printed(lambda file: abi().strata_advice_print(made.pointer, file)) + refused)

    return stop.call(work)


class Checked(Table):
    """A configuration's keys: path, value, origin, verdict, reason, effect.  `problems` are why a run would refuse it."""

    def __init__(self, rows: list[dict[str, Any]], problems: list[str]) -> None:
        super().__init__(rows, ("path", "value", "origin", "verdict", "reason"))
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *self.problems])


def check(
    config: Config, *, overrides: Mapping[str, Any] | None = None, steps: int = 0, allow_unknown: bool = False
) -> Checked:
    """Every value of a configuration: where it comes from, and what it means here.  Makes nothing, and raises for no value."""

    def work() -> Checked:
        opened = abi().handle("strata_config")
        opts = config_opts(config, overrides, max_steps=steps, allow_unknown=allow_unknown)
        try:
            abi().strata_config_check(ctypes.byref(opened), ctypes.byref(opts))
        except Error:
            if not opened:
                raise
        made = Handle(opened, "strata_config_close")
        rows = []
        for index in range(abi().strata_config_row_count(made.pointer)):
            row = abi().make("strata_config_row")
            abi().strata_config_get_row(made.pointer, index, ctypes.byref(row))
            told = abi().members(row, leave="row_size")
            rows.append({**told, "reason": told["reason"] and in_python(told["reason"])})
        problems: list[str] = []
        while (problem := abi().strata_config_problem(made.pointer, len(problems))) is not None:
            problems.append(in_python(problem.decode("utf-8", "replace")))
        return Checked(rows, problems)

    return blocked(work)


def info(machine: Machine | None = None) -> Report:
    """What a machine has, what it lacks, and why: the keys of `strata info --json`."""

    def work() -> Report:
        opened = (machine or Machine()).open()
        values = json.loads(got(abi().strata_machine_json, opened.pointer, None))
        return Report(values, printed(lambda file: abi().strata_machine_print(opened.pointer, None, file)))

    return blocked(work)
