"""python -m strata: the program `strata` of this package, with its arguments.

`report` is Python's own, and so is `export` of what an engine of strata.torch has saved.
"""

from __future__ import annotations

import errno
import os
import sys

from ._library import path_of_program
from .errors import Error


def _export(words: list[str]) -> int:
    import argparse

    from .files import export

    parser = argparse.ArgumentParser("strata export", description="Writes what an engine has saved as model.safetensors.")
    parser.add_argument("checkpoint", help="of strata.torch or strata.deepspeed: a directory of checkpoints, or one of them")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: that of the run's weights")
    parser.add_argument(
        "--max-shard-size", metavar="SIZE", help='such as "5GB": files of at most so many bytes, and their index'
    )
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args(words)
    try:
        made = export(
            given.checkpoint,
            given.out,
            dtype=given.dtype,
            overwrite=given.overwrite,
            max_shard_size=given.max_shard_size,
        )
    except KeyboardInterrupt:
        return 130
    except (Error, OSError, ValueError, ImportError) as error:
        print(f"strata: error: {_sentence(error)}", file=sys.stderr)
        return _exit_code(error)
    index = made / "model.safetensors.index.json"
    print(index if index.exists() else made / "model.safetensors")
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "this checkpoint is read by PyTorch: pip install torch"
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _exit_code(error: Exception) -> int:
    """As the program's (include/strata/status.h)."""
    if isinstance(error, OSError):
        return 4 if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS) else 2
    return error.exit_code if isinstance(error, Error) else 2


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        try:
            from ._page import main as report

            sys.exit(report(sys.argv[2:]))
        except KeyboardInterrupt:
            print("strata: interrupted: nothing was written", file=sys.stderr)
            sys.exit(130)
    if sys.argv[1:2] == ["export"]:
        from .files import is_engines

        words = sys.argv[2:]
        if any(is_engines(word) for at, word in enumerate(words) if at == 0 or words[at - 1] != "--out"):
            sys.exit(_export(words))
    program = path_of_program()
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
