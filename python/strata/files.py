"""What runs leave: checkpoints and adapters as directories of Hugging Face's, their digests."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ._abi import Text, encoded
from ._calls import Stop, blocked
from ._report import abi

Progress = Callable[[str, int, int], object]


def place_of(checkpoint: Text, tag: str | None = None) -> Path | None:
    """The directory that strata.torch's Engine.save() has made, of one that has some; None: there is none."""
    at = Path(os.fsdecode(checkpoint))
    if tag is None and (at / "client-0.pt").is_file():
        return at
    latest = at / "latest"
    tag = tag or (latest.read_text().strip() if latest.is_file() else "")
    return at / tag if tag and (at / tag / "client-0.pt").is_file() else None


def export(
    checkpoint: Text,
    out: Text,
    *,
    model: Text | None = None,
    dtype: str | None = None,
    merge: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a checkpoint's weights as a directory of Hugging Face's; returns it.

    One that strata.torch or strata.deepspeed has saved becomes model.safetensors, with the module's names, shapes and buffers.

    dtype  of that: "fp32", the masters, "bf16" or "fp16"; default: that of the run's weights
    merge  the checkpoint, or directory, has an adapter: `out` is the model with it added to its weights
    model  with merge: the model that the adapter was trained beside; default: the one that its run began with
    """
    if place_of(checkpoint) is not None:
        from .torch import exported  # which needs torch

        return exported.export(checkpoint, out, dtype, overwrite, progress)
    if dtype is not None:
        raise ValueError("dtype: a run of a model of strata's is written in its own")
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
    if path.exists() and not (overwrite and path.is_file()):
        problem = "exists already: overwrite replaces it" if path.is_file() else "is no file"
        raise FileExistsError(errno.EEXIST, problem, str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
    made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    encoding, errors = (None, None) if "b" in mode else ("utf-8", "replace")
    nameless = False  # until it is whole: a killed process leaves nothing
    try:
        try:
            opened: Any = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
            nameless = True
        except OSError:  # not every file system has that
            opened = made
        with open(opened, mode if nameless else mode.replace("w", "x"), encoding=encoding, errors=errors) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if nameless:
                # With a directory Python follows the link, which an absolute path does not need it for.
                os.link(f"/proc/self/fd/{file.fileno()}", made, src_dir_fd=file.fileno())
        os.replace(made, path)
    except OSError as error:
        if error.filename == str(made):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            made.unlink()


def digest(path: Text) -> str:
    """Digest of the weights of a directory of Hugging Face's: the one that `strata digest` prints."""

    def work() -> str:
        made = ctypes.create_string_buffer(33)
        abi().strata_directory_digest(encoded(path), made)
        return made.value.decode()

    return blocked(work)
