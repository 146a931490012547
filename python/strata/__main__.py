"""python -m strata: the program `strata` of this package, with its arguments."""

from __future__ import annotations

import os
import sys

from ._library import path_of_program


def main() -> None:
    program = path_of_program()
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
