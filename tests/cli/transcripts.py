#!/usr/bin/env python3
"""Transcripts: what the program says, whole.

    transcripts.py STRATA FILE.txt [--update]

FILE.txt holds commands of a shell and all that they print:

    # a note
    $ strata check a.json
    | a line of standard output
    ! a line of standard error
    = 2, the exit code, where it is not 0

They run one after the other in an empty directory, where $ROOT is the checkout; "\\" ends a line of a command that goes on in the next.
In a file whose first line is "# masked" numbers are <n>, with their units and the blanks before them: figures have their own tests.
Whatever differs from one machine to the next is for the command to leave out (sed).  --update writes the file anew: read its diff.
"""
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 120  # seconds for one command
NUMBER = re.compile(r"( *)(?<![\w.-])[+-]?\d[\d.]*( ?([KMGT]i?B|B|GB/s|ms|us|s)\b| %)?")


def read(path):
    """Notes and commands, in order: ("#", text) and ("$", text)."""
    parts, going_on = [], False
    with open(path, encoding="utf-8") as file:
        for line in file.read().split("\n"):
            if going_on:
                parts[-1] = ("$", parts[-1][1] + "\n" + line)
            elif line[:2] == "$ ":
                parts.append(("$", line[2:]))
            elif line[:1] in ("|", "!", "="):
                continue
            else:
                parts.append(("#", line))
            going_on = parts[-1][0] == "$" and parts[-1][1].endswith("\\")
    while parts and parts[-1] == ("#", ""):
        parts.pop()
    return parts


def environment(strata, work):
    keep = {name: value for name, value in os.environ.items() if name.startswith(("ASAN", "TSAN", "UBSAN", "LSAN", "GCOV"))}
    path = os.path.dirname(strata) + os.pathsep + os.environ.get("PATH", "/usr/bin:/bin")
    return {**keep, "PATH": path, "HOME": work, "TMPDIR": work, "LC_ALL": "C.UTF-8", "ROOT": ROOT, "STRATA_CACHE": ""}


def run(command, work, env, masked):
    done = subprocess.run(["sh", "-c", command.replace("\\\n", "")], cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    lines = []
    for mark, text in (("|", done.stdout), ("!", done.stderr)):
        text = text.decode("utf-8", "backslashreplace").replace(work, "WORK").replace(ROOT, "ROOT")
        text = NUMBER.sub(lambda number: " <n>" if number[1] else "<n>", text) if masked else text
        lines += [f"{mark} {line}".rstrip() for line in text.split("\n")[: -1 if text.endswith("\n") else None] if text]
    return lines + ([f"= {done.returncode}"] if done.returncode else [])


def main():
    strata, path = (os.path.abspath(word) for word in sys.argv[1:3])
    work = tempfile.mkdtemp(prefix="strata-transcript-")
    lines = []
    try:
        env = environment(strata, work)
        parts = read(path)
        for kind, text in parts:
            lines += [text] if kind == "#" else ["$ " + text, *run(text, work, env, parts[0] == ("#", "# masked"))]
    finally:
        shutil.rmtree(work)
    said = "\n".join(lines) + "\n"
    if sys.argv[3:] == ["--update"]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(said)
        return 0
    with open(path, encoding="utf-8") as file:
        wanted = file.read()
    for line in difflib.unified_diff(wanted.split("\n"), said.split("\n"), "wanted", "said", lineterm=""):
        print(line)
    return int(said != wanted)


sys.exit(main())
