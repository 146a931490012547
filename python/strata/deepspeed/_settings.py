"""A configuration as initialize() takes it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from typing import Any

from .._calls import Handle, blocked
from .._handles import config_opts
from .._report import abi, got
from ..errors import Error


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
        return dict(config)
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"a configuration is a dict or the name of a file, not {type(config).__name__}")
    with open(config, encoding="utf-8") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError:  # comments, ..., which hjson reads: the values in force that the library reads
        with resolved(config, allow_unknown=True) as opened:
            found = json.loads(got(abi().strata_config_json, opened.pointer))
    if not isinstance(found, dict):
        raise TypeError(f"{os.fspath(config)}: a configuration is an object, {{...}}")
    return found


def section(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A section within sections; empty where it is left out."""
    found: Any = config
    for name in names:
        found = found.get(name) or {}
    return dict(found)
