"""A configuration as initialize() takes it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from typing import Any

from .._calls import Handle, blocked
from .._handles import Named, config_opts, file_of
from .._report import abi, got
from ..errors import Error
from ..planning import check
from .utils.logging import logger


def resolved(config: Any, **members: Any) -> Handle:
    """A configuration that is looked at without a word in the log."""

    def work() -> Handle:
        opened = abi().handle("strata_config")
        try:
            abi().strata_config_check(
                ctypes.byref(opened), ctypes.byref(config_opts(config, None, steps_later=True, **members))
            )
        except Error:
            abi().strata_config_close(opened)
            raise
        return Handle(opened, "strata_config_close")

    return blocked(work)


def taken(config: Any) -> dict[str, Any]:
    """The dict of a dict or a file."""
    if config is None:
        raise ValueError("there is no configuration: give initialize() a config, or args with deepspeed_config")
    if isinstance(config, Mapping):
        _look_for_unknown({key: value for key, value in config.items() if key != "scheduler"}, config, file_of(config))
        return Named.of(config, file_of(config))
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"a configuration is a dict or the name of a file, not {type(config).__name__}")
    with open(config, encoding="utf-8") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError:  # comments, ..., which hjson reads: the values in force that the library reads
        with resolved(config, allow_unknown=True) as opened:
            found = json.loads(got(abi().strata_config_json, opened.pointer))
        rows = check(config, allow_unknown=True)
        found["strata"] = _only("strata", found.get("strata", {}), {row["path"] for row in rows if row["origin"] == "file"})
    if not isinstance(found, dict):
        raise TypeError(f"{os.fspath(config)}: a configuration is an object, {{...}}")
    _look_for_unknown(config, found, os.fsdecode(config))
    return Named.of(found, config)


def _only(path: str, value: Any, given: set[str]) -> Any:
    """Of a section what the file has: engines ask what somebody wanted."""
    if path in given or not isinstance(value, dict):
        return value
    inner = ((name, f"{path}.{name}", one) for name, one in value.items())
    return {name: _only(at, one, given) for name, at, one in inner if any(f"{key}.".startswith(f"{at}.") for key in given)}


def _look_for_unknown(config: Any, top: Mapping[str, Any], file: str | None) -> None:
    """Unknown keys are refused within sections, where they would train with other values than were meant, and named above them,
    where other programs keep their own."""
    unknown = {
        row["path"]: f"{row['path']}: {row['reason']}"
        for row in check(config, allow_unknown=True)
        if (row["reason"] or "").startswith("unknown key") and not row["path"].startswith("scheduler.")  # Python's
    }
    within = [path for path in unknown if "." in path and path not in top]
    if within:
        raise Error(
            "E_CONFIG",
            f"{file}: {unknown[within[0]]}" if file else unknown[within[0]],
            exit_code=2,
            key=within[0],
            detail="\n".join(unknown[path] for path in within[1:]),
            remedy="correct or remove it",
        )
    if unknown:
        where = file or "the configuration"
        logger.warning("unknown keys of %s, which do nothing (%d): %s", where, len(unknown), ", ".join(unknown))


def section(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A section within sections; empty where it is left out."""
    found: Any = config
    for name in names:
        found = found.get(name) or {}
    return dict(found)
