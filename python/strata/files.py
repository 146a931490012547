"""What runs leave: checkpoints and adapters as directories of Hugging Face's, their digests."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ._abi import Text, encoded
from ._calls import Stop, blocked
from ._report import abi
from .errors import Error, reading

Progress = Callable[[str, int, int], object]


def is_engines(checkpoint: Text) -> bool:
    """Whether strata.torch's Engine.save() has made it, or some in it, whole or not; those of train() have a `latest`, too."""
    at = Path(os.fsdecode(checkpoint))
    if os.path.isfile(at / "client-0.pt") or os.path.isfile(at / "latest" / "client-0.pt"):
        return True
    return os.path.isfile(at / "latest") and not (any(at.glob("step-*/manifest.json")) and not any(at.glob("*/client-0.pt")))


def new_tag(tag: object) -> str:
    """The tag of a checkpoint that is to be made; a refusal where it is none, or would meet what lies beside checkpoints."""
    problem = _tag_problem(tag)
    if problem is None:
        found = next((part for part in PurePosixPath(str(tag)).parts if _is_taken(part)), None)
        problem = None if found is None else f"{found} is a name of what strata keeps beside checkpoints, and in them"
    if problem is not None:
        raise _refused_tag(tag, problem)
    return str(PurePosixPath(str(tag)))


def _is_taken(name: str) -> bool:
    return name in ("latest", "strata") or name.startswith("client-") or name.endswith((".new", ".old"))


def _tag_problem(tag: object) -> str | None:
    """Why it is no tag."""
    if not isinstance(tag, str):
        return f"it is no text, but {type(tag).__name__}"
    if not tag.isprintable() or tag.strip() != tag:
        return "it has control characters, or spaces at its ends"
    at = PurePosixPath(tag)
    if at.is_absolute() or ".." in at.parts:
        return "it leads out of the directory of checkpoints"
    if not at.parts:
        return "it names that directory itself"
    return f"it is longer than {_TAG_BYTES} bytes" if len(tag.encode()) > _TAG_BYTES else None


def _refused_tag(tag: object, problem: str) -> Error:
    remedy = "give a name such as step100, or one in folders, run1/step100"
    return Error("E_INPUT", f"tag {tag!r:.99}: {problem}", exit_code=2, key="tag", remedy=remedy)


_TAG_BYTES = 251  # of the 255 of a name, as it is NAME.new before it is whole


def latest_of(directory: Path) -> str:
    """The tag that save() was given last."""
    path = directory / "latest"
    check_latest(path)
    with reading(path, _named(directory)):
        tag = path.read_bytes().decode().strip()
        if _tag_problem(tag) is not None:
            raise ValueError("it names no checkpoint")
    return tag


def check_latest(path: Path) -> None:
    """It names a checkpoint, and is none, as it became where earlier versions were given that tag."""
    if path.is_dir():
        told = f"{path} is a directory, where a file names the newest checkpoint"
        remedy = "give it another name, by which a checkpoint in it can be loaded"
        raise Error("E_CORRUPT", told, exit_code=4, key="tag", remedy=remedy)


def _tags(directory: Path) -> list[str]:
    found = (at.parent for depth in ("*", "*/*") for at in directory.glob(f"{depth}/client-0.pt"))
    names = (str(at.relative_to(directory)) for at in found)
    return sorted(name for name in names if not any(part.endswith((".new", ".old")) for part in name.split("/")))


def _named(directory: Path) -> str:
    tags = _tags(directory)
    return f"name one of {', '.join(tags)}" if tags else "take another checkpoint"


def place_of(checkpoint: Text, tag: str | None = None) -> Path:
    """A checkpoint that Engine.save() has made: this directory, or the one in it that has the tag, or that `latest` names."""
    at = Path(os.fsdecode(checkpoint))
    if tag is None and (at / "client-0.pt").is_file():
        return at
    if tag is None and not os.path.lexists(at / "latest"):
        raise FileNotFoundError(f"{at} has no checkpoint that a file `latest` names: {_named(at)}")
    problem = None if tag is None else _tag_problem(tag)
    if problem is not None:
        raise _refused_tag(tag, problem)
    tag = latest_of(at) if tag is None else tag
    place = at / tag
    old = place.with_name(place.name + ".old")
    if not place.exists() and (old / "client-0.pt").is_file():
        place = old
    if not (place / "client-0.pt").is_file():
        if (place / "strata").is_dir():
            raise Error("E_CORRUPT", f"{place / 'client-0.pt'} is missing", exit_code=4, remedy=_named(at))
        there = ", ".join(_tags(at))
        raise FileNotFoundError(f"{at} has no checkpoint {tag}: " + (f"there are {there}" if there else "it has none"))
    return place


def export(
    checkpoint: Text,
    out: Text,
    *,
    model: Text | None = None,
    dtype: str | None = None,
    merge: bool = False,
    overwrite: bool = False,
    max_shard_size: int | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a checkpoint's weights as a directory of Hugging Face's; returns it.

    One that strata.torch or strata.deepspeed has saved becomes model.safetensors, with the module's names, shapes and buffers;
    that of an engine which strata computes a model as of train().

    dtype  of that: "fp32", the masters, "bf16" or "fp16"; default: that of the run's weights
    max_shard_size  the same cut into files of at most so many bytes, or "5GB", and model.safetensors.index.json
    merge  the checkpoint, or directory, has an adapter: `out` is the model with it added to its weights
    model  with merge: the model that the adapter was trained beside; default: the one that its run began with
    """
    if is_engines(checkpoint):
        place = place_of(checkpoint)
        if not (place / "strata" / "model" / "config.json").is_file():
            from .torch import exported  # which needs torch

            return exported.export(place, Path(os.fsdecode(out)), dtype, overwrite, max_shard_size, progress)
        checkpoint = place / "strata"
    if dtype is not None or max_shard_size is not None:
        name = "dtype" if dtype is not None else "max_shard_size"
        raise ValueError(f"{name}: a run of a model of strata's is written as it was computed, in files as of its model")
    stop = Stop(progress)

    def work() -> Path:
        how = abi().make("strata_export_opts", overwrite=overwrite)
        opts = abi().make("strata_verify_opts", progress=stop.function)
        abi().strata_verify_export(encoded(checkpoint), encoded(out), ctypes.byref(how), ctypes.byref(opts))
        return Path(encoded(out).decode("utf-8", "surrogateescape"))

    def merged() -> Path:
        opts = abi().make(
            "strata_merge_opts", adapter=checkpoint, model=model, out=out, overwrite=overwrite, progress=stop.function
        )
        abi().strata_adapter_merge(ctypes.byref(opts))
        return Path(encoded(out).decode("utf-8", "surrogateescape"))

    return stop.call(merged if merge else work)


@contextmanager
def new_file(path: Path, overwrite: bool, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that takes its name once it is on the disk.  mode: "w" for text, "wb" for bytes."""
    with new_files([path], overwrite, mode) as files:
        yield files[0]


@contextmanager
def new_files(paths: Sequence[Path], overwrite: bool, mode: str = "w", stale: Sequence[Path] = ()) -> Iterator[list[IO[Any]]]:
    """Files that take their names, in this order, once all are on the disk; where one cannot be written, none does.

    They have no name before, where the file system knows such, so that nothing stays of a process that is killed.
    stale  what would be wrong beside some of them: it goes before the first takes its name
    """
    for path in paths:
        _check_new(path, overwrite)
    made = [path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}") for path in paths]
    there = [path for path in paths if path.exists()]
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(_opened(name, mode)) for name in made]
            yield files
            for file, name in zip(files, made):
                file.flush()
                os.fsync(file.fileno())
                if os.fstat(file.fileno()).st_nlink == 0:
                    os.link(f"/proc/self/fd/{file.fileno()}", name, src_dir_fd=file.fileno())  # else no link is followed
        for path in stale:
            path.unlink(missing_ok=True)
        try:
            for name, path in zip(made, paths):
                os.replace(name, path)
        except OSError:
            for path in paths:
                if path not in there:
                    path.unlink(missing_ok=True)
            raise
    except OSError as error:
        names = dict(zip(map(str, made), map(str, paths)))
        if error.filename is None or error.filename in names:
            error.filename, error.filename2 = names.get(error.filename, str(paths[0])), None
        raise
    finally:
        for name in made:
            with suppress(OSError):
                name.unlink()


def _check_new(path: Path, overwrite: bool) -> None:
    if os.path.lexists(path) and not (overwrite and path.is_file()):
        problem = "exists already: overwrite replaces it" if path.is_file() else "is no file"
        raise FileExistsError(errno.EEXIST, problem, str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))


def _opened(path: Path, mode: str) -> IO[Any]:
    """A new file of this name, or of none."""
    encoding, errors = (None, None) if "b" in mode else ("utf-8", "replace")
    if os.path.isdir("/proc/self/fd"):
        with suppress(OSError):  # a file system without such files, or a directory that takes none: the name tells
            number = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            return open(number, mode, encoding=encoding, errors=errors)
    return open(path, mode.replace("w", "x"), encoding=encoding, errors=errors)


def digest(path: Text) -> str:
    """Digest of the weights of a directory of Hugging Face's: the one that `strata digest` prints."""

    def work() -> str:
        made = ctypes.create_string_buffer(33)
        abi().strata_directory_digest(encoded(path), made)
        return made.value.decode()

    return blocked(work)
