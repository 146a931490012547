#!/usr/bin/env python3
"""aio_handle.py - reads and writes of one file by strata, fio and DeepSpeed's aio_handle.

Started by aio_handle.sh.  All run in the same minutes on the same drive, in turns: strata bench io (with --fio: fio in turns of
its own beside it), then aio_handle with DeepSpeed's defaults and with the request size, depth and threads given.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATTERNS = {"read": "sync_pread", "write": "sync_pwrite"}
DEFAULTS = {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1}  # of DeepSpeed's "aio" section
TARGET_FIO, TARGET_PEER = 0.97, 1.0


def size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def parse_args():
    parser = argparse.ArgumentParser(prog="aio_handle.sh", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strata", required=True, metavar="BINARY", help="the program, such as build/release/cli/strata")
    parser.add_argument("--nvme", required=True, metavar="DIR", help="a directory on the drive; a file of its own is made and removed")
    parser.add_argument("--env", metavar="DIR", help="the Python environment, made where it is missing")
    parser.add_argument("--size", type=size, default=1 << 30, help="of the file; default 1G, as much memory is used")
    parser.add_argument("--block", type=size, default=1 << 20, help="strata's, fio's and the tuned handle's request; default 1M")
    parser.add_argument("--depth", type=int, default=32, help="their queue depth; default 32")
    parser.add_argument("--threads", type=int, default=2, help="of the tuned handle; default 2, which fits a machine of two cores")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of strata and fio in a round; handles move at least as long")
    parser.add_argument("--no-fio", dest="fio", action="store_false", help="leave fio out")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object instead of the table")
    args = parser.parse_args()
    args.strata = str(Path(args.strata).resolve())
    return args


def say(text):
    print(f"aio_handle: {text}", file=sys.stderr, flush=True)


def cpu_seconds():
    """Of this process, its threads and those the kernel runs for it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_strata(args):
    """One repeat of each pattern, by strata and (with --fio) by fio's engines."""
    command = [args.strata, "bench", "io", args.nvme, "--json", "--pattern", ",".join(PATTERNS), "--block", str(args.block), "--depth",
               str(args.depth), "--size", str(args.size), "--seconds", str(args.seconds), "--repeats", "1"]
    done = subprocess.run(command + (["--fio"] if args.fio else []), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"aio_handle: {' '.join(command)} exits with {done.returncode}:\n{done.stderr}")
    rows = {pattern: {} for pattern in PATTERNS}
    for row in map(json.loads, done.stdout.splitlines()):
        name = row["variant"] if row["variant"].startswith("fio_") else "strata"
        rows[row["name"]][name] = {"gb_per_s": row["gb_per_s"], "cpu_seconds_per_gb": row["cpu_seconds_per_gb"]}
    return rows


class Handles:
    """DeepSpeed's handle over one file and one pinned tensor, with its defaults and tuned."""

    def __init__(self, args, path):
        import deepspeed
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder

        library = AsyncIOBuilder().load()
        tuned = {"block_size": args.block, "queue_depth": args.depth, "intra_op_parallelism": args.threads}
        self.args, self.path = args, path
        self.versions = {"torch": torch.__version__, "deepspeed": deepspeed.__version__}
        self.handles = {}
        for name, options in (("deepspeed_default", DEFAULTS), ("deepspeed_tuned", tuned)):
            self.handles[name] = library.aio_handle(options["block_size"], options["queue_depth"], False, True,
                                                    options["intra_op_parallelism"])
        first = next(iter(self.handles.values()))
        self.buffer = first.new_cpu_locked_tensor(args.size, torch.empty(0, dtype=torch.uint8))
        self.buffer.random_(0, 256)
        first.sync_pwrite(self.buffer, path, 0)

    def timed(self, handle, pattern):
        """Whole passes over the file until the time is up; a pass is one call."""
        call = getattr(handle, PATTERNS[pattern])
        moved, begin, cpu = 0, time.perf_counter(), cpu_seconds()
        while moved == 0 or time.perf_counter() - begin < self.args.seconds:
            if call(self.buffer, self.path, 0) < 0:
                sys.exit(f"aio_handle: {PATTERNS[pattern]} fails")
            moved += self.args.size
        seconds = time.perf_counter() - begin
        return {"gb_per_s": moved * 1e-9 / seconds, "cpu_seconds_per_gb": (cpu_seconds() - cpu) / (moved * 1e-9)}

    def round(self, pattern):
        return {name: self.timed(handle, pattern) for name, handle in self.handles.items()}


def run_rounds(args, handles):
    rounds = []
    for index in range(args.rounds):
        one = run_strata(args)
        for pattern in PATTERNS:
            one[pattern].update(handles.round(pattern))
        rounds.append(one)
        say(f"round {index + 1}: " + "; ".join(
            f"{pattern} " + ", ".join(f"{name} {row['gb_per_s']:.2f}" for name, row in one[pattern].items()) for pattern in PATTERNS)
            + " GB/s")
    return rounds


def report(args, versions, rounds, load):
    """Medians of all rounds, and strata's ratio to each of the others."""
    table = {}
    for pattern in PATTERNS:
        names = [name for name in rounds[0][pattern] if all(name in one[pattern] for one in rounds)]
        rows = {name: {key: statistics.median(one[pattern][name][key] for one in rounds) for key in ("gb_per_s", "cpu_seconds_per_gb")}
                for name in names}
        for row in rows.values():
            row["strata_ratio"] = rows["strata"]["gb_per_s"] / row["gb_per_s"]
        table[pattern] = rows
    return {"size": args.size, "block": args.block, "depth": args.depth, "threads": args.threads, "rounds": args.rounds,
            "load_before": load, "versions": versions, "table": table}


def print_table(result):
    print(f"{'pattern':8} {'by':18} {'GB/s':>8} {'cpu s/GB':>9} {'strata is':>10}")
    for pattern, rows in result["table"].items():
        for name, row in rows.items():
            print(f"{pattern:8} {name:18} {row['gb_per_s']:8.3f} {row['cpu_seconds_per_gb']:9.4f} {row['strata_ratio']:9.2f}x")
    for pattern, rows in result["table"].items():
        fio = [row["strata_ratio"] for name, row in rows.items() if name.startswith("fio_")]
        peers = [row["strata_ratio"] for name, row in rows.items() if name.startswith("deepspeed_")]
        text = f"{min(peers):.2f} of the better aio_handle (wanted {TARGET_PEER:.2f})"
        if fio:
            text = f"{min(fio):.2f} of the best of fio (wanted {TARGET_FIO:.2f}), " + text
        print(f"{pattern}: {text}")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    print(f"{result['rounds']} rounds, medians; {result['block']} bytes x {result['depth']}; aio_handle tuned the same with "
          f"{result['threads']} threads, default 1048576 x 8 with 1; {versions}; load before {result['load_before']:.2f}")


def main():
    args = parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="strata-peers-", dir=args.nvme) as directory:
        handles = Handles(args, str(Path(directory) / "aio_handle"))
        rounds = run_rounds(args, handles)
    result = report(args, handles.versions, rounds, load)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
