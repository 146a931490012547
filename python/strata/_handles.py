"""Configuration, machine, model, plan, data, engine: opened in this order (docs/api.md)."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._abi import Text, encoded, texts
from ._calls import Handle
from ._report import abi, got
from .errors import Error

Config = Text | Mapping[str, Any] | None


class Named(dict[str, Any]):
    """The keys of a file, which sentences name."""

    file: str | None = None

    @classmethod
    def of(cls, keys: Mapping[str, Any], file: Text | None) -> Named:
        made = cls(keys)
        made.file = None if file is None else os.fsdecode(file)
        return made


def file_of(config: Config) -> str | None:
    return getattr(config, "file", None)


@dataclass(frozen=True)
class Machine:
    """What there is to run on: this machine, the one that a file describes, or one named by its parts.

    device  "cpu", "cuda" or "cuda:1"
    file    as `strata info --measure --out FILE` writes it
    gpu     for plans, in place of a file: a card such as "4090"; `ram` and `drives` as "128GB" and "gen4:2TBx2"
    ranks, nodes  for plans: processes that train together, and machines that they are on
    """

    device: str = "cpu"
    file: Text | None = None
    gpu: str | None = None
    ram: str | None = None
    drives: Sequence[str] = ()
    ranks: int = 0
    nodes: int = 0

    def open(self, comm: Any = None) -> Handle:
        """comm: the ranks that share it."""
        machine = abi().handle("strata_machine")
        opts = abi().make(
            "strata_machine_opts",
            device=self.device,
            file=self.file,
            gpu=self.gpu,
            ram=self.ram,
            drives=texts(self.drives),
            drive_count=len(self.drives),
            ranks=self.ranks,
            nodes=self.nodes,
            cache_dir=_cache_dir(),
            comm=comm,
        )
        abi().strata_machine_open(ctypes.byref(machine), ctypes.byref(opts))
        return Handle(machine, "strata_machine_close")


def _cache_dir() -> str | None:
    """Where measured rates are kept, as the program has it (docs/install.md, Environment variables)."""
    asked = os.environ.get("STRATA_CACHE")
    if asked is not None:
        return asked or None
    caches, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(caches):
        return os.path.join(caches, "strata")
    return os.path.join(home, ".cache", "strata") if os.path.isabs(home) else None


def _words(overrides: Mapping[str, Any] | None) -> list[str]:
    return [f"{path}={json.dumps(value)}" for path, value in (overrides or {}).items()]


def config_opts(config: Config, overrides: Mapping[str, Any] | None, **members: Any) -> Any:
    """struct strata_config_opts: a file, or a dict as DeepSpeed takes it, and values that replace the file's."""
    words = _words(overrides)
    if isinstance(config, Mapping):
        members.update(text=json.dumps(config), name=file_of(config))
    else:
        members["file"] = config
    return abi().make("strata_config_opts", overrides=texts(words), override_count=len(words), **members)


def open_config(config: Config, overrides: Mapping[str, Any] | None, **members: Any) -> Handle:
    opened = abi().handle("strata_config")
    abi().strata_config_open(ctypes.byref(opened), ctypes.byref(config_opts(config, overrides, **members)))
    return Handle(opened, "strata_config_close")


class Model(Handle):
    """A model as a configuration says, for one use: TRAIN, EVAL, GENERATE or PLAN."""

    def __init__(self, config: Handle, model: Text, use: str, **members: Any) -> None:
        opened = abi().handle("strata_model")
        opts = model_opts(model, use, **members)
        self._progress = members.get("progress")  # called as long as the model's engine lives
        abi().strata_model_open(ctypes.byref(opened), config.pointer, ctypes.byref(opts))
        super().__init__(opened, "strata_model_close")
        self.info = facts("strata_model", "info", opened)


def model_opts(model: Text, use: str, **members: Any) -> Any:
    return abi().make("strata_model_opts", model=model, use=abi().value(f"STRATA_USE_{use}"), **members)


def facts(handle: str, what: str, pointer: Any) -> Any:
    """What strata_HANDLE_get_WHAT() fills."""
    info = abi().make(f"{handle}_{what}")
    getattr(abi(), f"{handle}_get_{what}")(pointer, ctypes.byref(info))
    return info


class Plan(Handle):
    """Where everything of a model will be placed.  One that does not fit says what is lacking."""

    def __init__(self, model: Handle, machine: Handle) -> None:
        plan = abi().handle("strata_plan")
        self.refused: Error | None = None  # why it does not fit
        try:
            abi().strata_plan_make(ctypes.byref(plan), model.pointer, machine.pointer)
        except Error as error:
            if not plan:
                raise
            self.refused = error
        super().__init__(plan, "strata_plan_destroy")


class Data(Handle):
    """Token files, or texts and rows, as sequences of a model's length."""

    def __init__(self, model: Model, paths: Sequence[Text], **opts: Any) -> None:
        data = abi().handle("strata_data")
        if all_tokens(paths):
            abi().strata_data_open(ctypes.byref(data), model.pointer, texts(paths), len(paths))
        else:
            made = abi().make("strata_texts_opts", **opts)
            abi().strata_data_open_texts(ctypes.byref(data), model.pointer, texts(paths), len(paths), ctypes.byref(made))
        super().__init__(data, "strata_data_close")

    def __len__(self) -> int:
        return int(abi().strata_data_count(self.pointer))


def _kinds(paths: Sequence[Text]) -> set[int]:
    kinds = set()
    for path in paths:
        kind = ctypes.c_int()
        abi().strata_data_kind_of(encoded(path), ctypes.byref(kind))
        kinds.add(kind.value)
    return kinds


def all_tokens(paths: Sequence[Text]) -> bool:
    """Whether all of these are token files: a series holds those, or texts and rows."""
    return _kinds(paths) == {abi().value("STRATA_KIND_TOKENS")}


def has_borders(paths: Sequence[Text], layout: str | None) -> bool:
    """Whether sequences of this data hold documents with borders between them."""
    if not all_tokens(paths):
        return layout == "packed" or (layout is None and abi().value("STRATA_KIND_ROWS") in _kinds(paths))
    borders = ctypes.c_bool()
    abi().strata_data_documents(texts(paths), len(paths), ctypes.byref(borders))
    return borders.value


class EngineHandle(Handle):
    """What engines of decoders and of layers have in common."""

    @staticmethod
    def created(plan: Plan, **members: Any) -> Any:
        """An engine of a plan, for Handle.  members: of struct strata_engine_opts."""
        engine = abi().handle("strata_engine")
        opts = abi().make("strata_engine_opts", **members)
        abi().strata_engine_create(ctypes.byref(engine), plan.pointer, ctypes.byref(opts))
        return engine

    @property
    def info(self) -> Any:
        """struct strata_engine_info."""
        return facts("strata_engine", "info", self.pointer)

    def header(self, steps: int = 0) -> str:
        """What runs, for `steps`, as a line of JSON (docs/json.md); 0: nobody knows for how many."""
        return got(abi().strata_engine_json, self.pointer, steps)

    def cancel(self, times: int) -> None:
        """What Ctrl-C does: the first waits for the end of the step, the second ends the engine."""
        if times > 1:
            abi().strata_engine_cancel(self.pointer)


class Engine(EngineHandle):
    """A plan that runs."""

    def __init__(self, plan: Plan, model: Model, **members: Any) -> None:
        self.model = model
        super().__init__(self.created(plan, **members), "strata_engine_destroy")
