"""python -m strata: the program `strata` of this package, with its arguments.

`report` is Python's own, and so is `export` of what an engine of strata.torch has saved.
"""

from __future__ import annotations

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
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args(words)
    try:
        print(export(given.checkpoint, given.out, dtype=given.dtype, overwrite=given.overwrite) / "model.safetensors")
    except (Error, OSError) as error:
        print(f"strata: error: {error}", file=sys.stderr)
        return 2
    return 0


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        try:
            from ._page import main as report

            sys.exit(report(sys.argv[2:]))
        except KeyboardInterrupt:
            print("strata: interrupted: nothing was written", file=sys.stderr)
            sys.exit(130)
    if sys.argv[1:2] == ["export"]:
        from .files import place_of

        if any(place_of(word) for word in sys.argv[2:]):
            sys.exit(_export(sys.argv[2:]))
    program = path_of_program()
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
