"""Checkpoints of an engine, DIRECTORY/TAG: strata's own, linked, and beside it what PyTorch keeps.

step20/strata/          a checkpoint of strata's
step20/client-0.pt      what rank 0 saves beside it, and client-0.json with its checksum and step
step20.new/             one that is not whole yet; it takes the name by a rename
step20.old/             the one that was replaced, for as long as that takes; load() takes it where there is no step20
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Error
from ..layers import Layers
from .beside import told_of, write_beside
from .ranks import agree


@dataclass
class _UnderWay:
    place: Path
    latest: bool
    step: int
    source: str | None = None  # a checkpoint of this step that is whole already


class Saves:
    def __init__(self, own: str, overwrite: bool) -> None:
        """own: the run's directory, in which strata makes its checkpoints.  overwrite: those of another run there."""
        self._own, self._overwrite = own, overwrite
        self._run: str | None = None  # of the checkpoint that was loaded
        self._made: set[str] = set()  # names in the run's directory
        self._under_way: _UnderWay | None = None
        self._whole: tuple[int, str] | None = None  # a step, and where it lies
        self._changed = False  # weights were set since it was taken: no checkpoint has them
        self._failure: Exception | None = None  # of the last save, which nobody has been told
        self._failed = False  # the last save

    def changed(self) -> None:
        """Weights were set."""
        self._changed = True

    def is_taken(self, layers: Layers) -> bool:
        """Whether this step has a checkpoint with other weights, or one that is gone; or is none, before the first."""
        step = _step_of(layers)
        whole = self._whole if self._whole is not None and self._whole[0] == step else None
        taken = step == 0 or (whole is not None and (self._changed or not os.path.isdir(whole[1])))
        return taken if layers.comm is None else layers.comm.gather(bytes([taken]), "the name of a checkpoint")[0] == b"\1"

    def save(self, layers: Layers, place: Path, beside: dict[str, Any], latest: bool) -> None:
        """The one before has been waited for."""
        step, rank = _step_of(layers), _rank(layers)
        new = place.with_name(place.name + ".new")
        source = self._whole[1] if self._whole is not None and self._whole[0] == step else None
        error: Exception | None = None
        try:
            if rank == 0:
                self._check(step, source)
                _remove(new)
                new.mkdir(parents=True)
        except Exception as raised:
            error = raised
        agree(layers.comm, error, "the place of a checkpoint")
        try:
            try:
                for path, data in write_beside(new, rank, step, beside).items():
                    _write(path, data)
            except Exception as raised:
                error = raised
            agree(layers.comm, error, "what is saved beside a checkpoint")
            under_way = _UnderWay(place, latest, step, source)
            self._failure, self._failed = None, False
            if source is None:
                self._whole, self._changed = None, False
                self._under_way = under_way  # before save(): Ctrl-C may come behind it
                try:
                    layers.save()
                except Exception:
                    self._under_way, self._failed = None, True
                    raise
                self._made.add(_name(step))
            self._under_way = under_way
        except BaseException:
            if self._under_way is None:
                _remove(new)
            raise

    def _check(self, step: int, source: str | None) -> None:
        if source is not None or self._overwrite or not os.path.isdir(self._own):
            return
        for name in sorted(os.listdir(self._own)):
            new = name.startswith("step-") and name >= _name(step) and name not in self._made
            if new and (self._run is None or told_of(Path(self._own, name), "id") != self._run):
                raise RuntimeError(
                    f"{self._own} has {name} of another run: go on from there by load(), name another directory with "
                    "save=, or replace it with overwrite=True"
                )

    def look(self, layers: Layers, wait: bool = False) -> None:
        """As saved(), without raising that a save has failed: a warning tells of it, and so does the next saved()."""
        try:
            self._follow(layers, wait)
        except Exception as error:
            self._failure = error
            logging.getLogger("strata").warning("the last checkpoint was not made: %s", error)

    def saved(self, layers: Layers, wait: bool) -> bool:
        self._follow(layers, wait)
        return self.told()

    def told(self) -> bool:
        """The same, by what is known already."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._under_way is None and not self._failed

    def _follow(self, layers: Layers, wait: bool) -> None:
        """A checkpoint that is whole is linked to where it was asked for.  Ctrl-C leaves it for the next call."""
        under_way = self._under_way
        if under_way is None:
            return
        try:
            source = under_way.source
            if source is None:
                done, source = _ask(layers, wait, under_way.step)
                if not done:
                    return
                if not _is_of(source, under_way.step):
                    raise RuntimeError(f"the checkpoint of step {under_way.step} was not made")
                under_way.source = source
                assert source is not None
                self._whole = under_way.step, source
            if _rank(layers) == 0:
                _link(source, under_way.place)
                if under_way.latest:
                    _point(under_way.place)
        except Exception:
            self._under_way, self._failed = None, True
            if _rank(layers) == 0:
                _remove(under_way.place.with_name(under_way.place.name + ".new"))
            raise
        self._under_way = None

    def resume(self, layers: Layers, place: Path) -> None:
        run = told_of(place / "strata", "id")
        layers.resume(place / "strata")
        self._run = run
        self._whole, self._changed = (_step_of(layers), str(place / "strata")), False


def _ask(layers: Layers, wait: bool, step: int) -> tuple[bool, str | None]:
    try:
        return layers.saved(wait)
    except Error as error:
        told = layers.saved(False)
        if not _is_of(told[1], step):
            raise
        logging.getLogger("strata").warning("the checkpoint of step %d is whole: %s", step, error)
        return told


def _is_of(checkpoint: str | None, step: int) -> bool:
    return checkpoint is not None and os.path.basename(checkpoint) == _name(step)


def _write(path: Path, data: bytes | memoryview) -> None:
    with open(path, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _link(source: str, place: Path) -> None:
    new, old = (place.with_name(place.name + end) for end in (".new", ".old"))
    if new.exists():  # else Ctrl-C came behind its rename
        _remove(new / "strata")
        shutil.copytree(source, new / "strata", copy_function=_link_file)
        for inner, _, _ in os.walk(new):
            _sync(Path(inner))
        if place.exists():
            _clear(old, place)
            place.rename(old)
        new.rename(place)
        _sync(place.parent)
    _clear(old, place)


def _clear(old: Path, place: Path) -> None:
    """What was replaced goes; files of others in it stay."""
    if not old.exists():
        return
    for there in old.iterdir():
        if there.name != "strata" and not there.name.startswith("client-") and not (place / there.name).exists():
            there.rename(place / there.name)
    _remove(old)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)
        _sync(Path(target))


def _point(place: Path) -> None:
    _write(place.parent / "latest.new", place.name.encode())
    (place.parent / "latest.new").replace(place.parent / "latest")
    _sync(place.parent)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _sync(path: Path) -> None:
    """Of a file or a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _rank(layers: Layers) -> int:
    return 0 if layers.comm is None else layers.comm.rank


def _step_of(layers: Layers) -> int:
    return int(layers.info.steps + layers.info.skipped_steps)


def _name(step: int) -> str:
    return f"step-{step:08d}"
