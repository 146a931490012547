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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Error
from ..files import check_latest, new_tag
from ..layers import Layers
from .beside import packed, told_of, write_beside
from .exported import buffers_of, names_of
from .ranks import agree

if TYPE_CHECKING:
    from .engine import Engine


@dataclass
class Asked:
    """What a save is to make: DIRECTORY/TAG, and whether `latest` is to name it."""

    directory: Path
    tag: str
    latest: bool

    @property
    def place(self) -> Path:
        return self.directory / self.tag

    @property
    def new(self) -> Path:
        return self.place.with_name(self.place.name + ".new")

    def check(self, own: str) -> None:
        """Refuses what would be in the way, before anything is made.  own: the run's directory."""
        first = self.tag.partition("/")[0]
        if first.startswith("step-") and self.directory.resolve() == Path(own).resolve():
            raise self._refused(f"tag {first}: so the run's own checkpoints are called in {own}")
        for name in ("latest", "latest.new") if self.latest else ():
            check_latest(self.directory / name)
        for at in self.place.relative_to(self.directory).parents:
            if (self.directory / at / "client-0.pt").exists() and at != Path():
                raise self._refused(f"{self.directory / at} is a checkpoint, and no folder of some")
        if os.path.lexists(self.place) and not self.place.is_dir():
            raise self._refused(f"{self.place} is no directory")

    def _refused(self, cause: str) -> Error:
        return Error("E_INPUT", cause, exit_code=2, key="tag", remedy="name another tag, or move it away")


def prepared(
    engine: Engine,
    directory: str | os.PathLike[str],
    tag: str | None,
    client_state: Callable[[], Any],
    latest: bool,
) -> tuple[Asked, dict[str, Any]]:
    """What a save is to make, and what lies beside it but random states; refusals come before anything is touched."""
    name = os.fsdecode(directory)
    if not name or "\0" in name:
        raise Error("E_INPUT", f"{name!r} names no directory", exit_code=2, remedy="name one for checkpoints")
    asked = Asked(Path(name).absolute(), new_tag(f"global_step{engine._steps}" if tag is None else tag), latest)
    first = _rank(engine._layers) == 0
    if first:
        asked.check(engine.settings["strata"]["save"])
    return asked, {
        "client_state": packed("client_state", client_state()),
        "optimizer": packed("optimizer", engine.optimizer.state_dict()),
        "buffers": buffers_of(engine.module) if first else {},
        "names": names_of(engine.module, engine._kept) if first else {},
    }


@dataclass
class _UnderWay:
    asked: Asked
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

    def save(self, layers: Layers, asked: Asked, beside: dict[str, Any]) -> None:
        """The one before has been waited for."""
        step, rank, new = _step_of(layers), _rank(layers), asked.new
        source = self._whole[1] if self._whole is not None and self._whole[0] == step else None
        error: Exception | None = None
        try:
            if rank == 0:
                self._check(step, source)
                _remove(new)
                with _writing(new):
                    new.mkdir(parents=True)
        except Exception as raised:
            error = raised
        agree(layers.comm, error, "the place of a checkpoint")
        try:
            try:
                for path, data in write_beside(new, rank, step, beside).items():
                    with _writing(path):
                        _write(path, data)
            except Exception as raised:
                error = raised
            agree(layers.comm, error, "what is saved beside a checkpoint")
            under_way = _UnderWay(asked, step, source)
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
                _link(source, under_way.asked)
                if under_way.asked.latest:
                    _point(under_way.asked)
        except Exception:
            self._under_way, self._failed = None, True
            if _rank(layers) == 0:
                _remove(under_way.asked.new)
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


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Error("E_IO", f"{path} cannot be written: {error.strerror or error}", exit_code=4) from error


def _link(source: str, asked: Asked) -> None:
    place, new = asked.place, asked.new
    old = place.with_name(place.name + ".old")
    if new.exists():  # else Ctrl-C came behind its rename
        _remove(new / "strata")
        shutil.copytree(source, new / "strata", copy_function=_link_file)
        for inner, _, _ in os.walk(new):
            _sync(Path(inner))
        if place.exists():
            _clear(old, place)
            place.rename(old)
        new.rename(place)
        for at in place.relative_to(asked.directory).parents:
            _sync(asked.directory / at)
    _clear(old, place)


def _clear(old: Path, place: Path) -> None:
    """What was replaced goes; files of others in it stay."""
    if old.is_symlink():  # to where others have their files
        old.unlink()
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


def _point(asked: Asked) -> None:
    new = asked.directory / "latest.new"
    _write(new, asked.tag.encode())
    new.replace(asked.directory / "latest")
    _sync(asked.directory)


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
