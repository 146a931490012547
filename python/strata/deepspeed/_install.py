"""This package under the name deepspeed."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

VERSION = "0.19.8"
"""Of DeepSpeed, whose names these are: what asks for a version takes the paths that are served here."""

_OURS = str(__package__)

E = TypeVar("E", bound=Exception)


def absent(name: str, kind: type[E]) -> E:
    return kind(f"strata has no {name}: docs/python.md lists what of DeepSpeed there is")


def missing(module: str) -> Callable[[str], Any]:
    """A module's __getattr__, which names what is absent."""

    def refuse(name: str) -> Any:
        raise absent(f"{module.replace(_OURS, 'deepspeed')}.{name}", AttributeError)

    return refuse


class _Metadata(importlib.metadata.Distribution):
    """What importlib.metadata says of a distribution of this name."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\nSummary: strata, under DeepSpeed's names\n"

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Finder(importlib.metadata.DistributionFinder):
    """The metadata, and a sentence in place of a module that is absent."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.startswith("deepspeed."):
            raise absent(f"module {name}", ModuleNotFoundError)
        if name != "accelerate.utils.deepspeed":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                sys.modules[_OURS].watch()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        asked = getattr(context, "name", None)
        return [_Metadata()] if asked is None or asked.lower() == "deepspeed" else []


def install() -> None:
    """From now on `import deepspeed` is this package.  Refused where DeepSpeed itself has been imported."""
    there = sys.modules.get("deepspeed")
    if there is sys.modules[_OURS]:
        return
    if there is not None:
        raise ImportError(f"deepspeed has been imported from {getattr(there, '__file__', None)}: install() comes before that")
    package = sys.modules[_OURS]
    sys.modules["deepspeed"] = package
    for found in pkgutil.walk_packages(package.__path__, f"{_OURS}."):
        if "._" not in found.name:
            sys.modules[found.name.replace(_OURS, "deepspeed")] = importlib.import_module(found.name)
    sys.meta_path.insert(0, _Finder())
    package.watch()
