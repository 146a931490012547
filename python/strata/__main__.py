"""python -m strata: the program `strata` of this package, with its arguments.  `report` is Python's own."""

from __future__ import annotations

import os
import sys

from ._library import path_of_program


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        from ._page import main as report

        sys.exit(report(sys.argv[2:]))
    program = path_of_program()
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
