"""How close this machine's parts come to what they could do."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from ._library import path_of_program
from ._report import Table
from .errors import Error

_STATUS = {2: "E_INVAL", 3: "E_NOFIT", 4: "E_IO", 5: "E_NUMERICS", 130: "E_CANCELLED"}  # of exit codes


def bench(what: str, *arguments: str, **options: Any) -> Table:
    """Rows of `strata bench`: what is "optim", "link", "update", "step" or "io" (docs/bench.md).

    Runs the program in a process of its own, so that nothing here disturbs the figures: bench("update", nvme="/scratch",
    repeats=3) is `strata bench update --nvme /scratch --repeats 3`.
    """
    words = [str(path_of_program()), "bench", what, *arguments, "--json"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(_STATUS.get(done.returncode, "E_INTERNAL"), _last_line(done.stderr), exit_code=done.returncode)
    return Table(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("strata: ") if lines else "the program ended without a word"
