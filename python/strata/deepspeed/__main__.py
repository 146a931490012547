"""python -m strata.deepspeed SCRIPT [arguments], or -m MODULE [arguments]: a program whose `import deepspeed` is strata's."""

from __future__ import annotations

import concurrent.futures
import os
import runpy
import sys
import traceback
from types import TracebackType

from ..errors import Error
from ._install import install

USAGE = "usage: python -m strata.deepspeed SCRIPT [arguments]\n       python -m strata.deepspeed -m MODULE [arguments]"

# What a launcher sets; without one there is one process, as under `deepspeed --num_gpus 1`.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

# These start the script in processes of their own, in which `import deepspeed` is what is installed.
LAUNCHERS = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli", "torch.distributed.run")

_HIDDEN = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen runpy>",
    os.path.dirname(concurrent.futures.__file__),
)


def _short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback without the frames of this package, which tell a script's author nothing; a fault in it keeps them."""
    frames = traceback.extract_tb(trace)
    shown = [frame for frame in frames if not frame.filename.startswith(_HIDDEN)]
    if not shown or not isinstance(error, (Error, ValueError, TypeError, RuntimeError, OSError, ImportError, AttributeError)):
        shown = list(frames)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    sys.stderr.write("".join(lines + traceback.format_exception_only(kind, error)))


def main() -> None:
    words = sys.argv[1:]
    ranks = [word for word in words[:1] if word.startswith("--local_rank=")]  # of the launcher `deepspeed`: for the script
    words = words[len(ranks) :]
    as_module = words[:1] == ["-m"]
    words = words[as_module:]
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if words else 2)
    if as_module and words[0] in LAUNCHERS and "strata.deepspeed" not in words[1:]:
        sys.stderr.write(f"strata: error: {words[0]} starts other processes: add --module strata.deepspeed before the script\n")
        raise SystemExit(2)
    if "RANK" not in os.environ:
        os.environ.update(ALONE)
    install()
    sys.excepthook = _short
    sys.argv = [words[0], *ranks, *words[1:]]
    if as_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
