#!/usr/bin/env python3
"""loops.py - one table: a step of a PyTorch loop over GPT-2 124M in fp32, by the optimizer and by where its state is.

Started by loops.sh.  Every run is a fresh process on the same tokens and threads; rounds take the variants in turns.  A run is
one line of JSON in --log; the table is made of all that it has, so rounds can be run apart.  The row `none` has no optimizer:
its step is what PyTorch's forward and backward take, its peak what they need.  Bounds are the bytes of an update over the rates
that `strata bench io` and `strata bench optim` measure in each round.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from deepspeed_zero3 import PIPELINED, cpu_name, write_random_tokens

HERE = Path(__file__).resolve().parent
STATE_BYTES = 16  # a parameter and step: two fp32 moments, read and written
MEMORY_BYTES = 28  # these, the weight, read and written, and the gradient
COLUMNS = ("step", "forward", "backward", "update")
LOOP, DEEPSPEED = "loop_step.py", "deepspeed_step.py"
VARIANTS = {
    "none": (LOOP, "--optimizer", "none"),
    "torch": (LOOP, "--optimizer", "torch"),
    "torch-fused": (LOOP, "--optimizer", "torch_fused"),
    "strata-memory": (LOOP, "--optimizer", "strata"),
    "strata-nvme": (LOOP, "--optimizer", "strata", "--nvme", "NVME"),
    "engine-memory": (LOOP, "--optimizer", "engine"),
    "engine-nvme": (LOOP, "--optimizer", "engine", "--nvme", "NVME"),
    "zero2-cpu": (DEEPSPEED, "--dtype", "fp32", "--stage", "2", "--state", "cpu"),
    "zero3-cpu": (DEEPSPEED, "--dtype", "fp32", "--stage", "3", "--state", "cpu"),
    "zero3-nvme": (DEEPSPEED, "--dtype", "fp32", "--stage", "3", "--state", "nvme", "--nvme", "NVME"),
    "zero3-nvme-pipelined": (DEEPSPEED, "--dtype", "fp32", "--stage", "3", "--state", "nvme", "--nvme", "NVME", *PIPELINED),
}


def parse_args():
    parser = argparse.ArgumentParser(prog="loops.sh", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strata", required=True, metavar="BINARY", help="the program, such as build/release/cli/strata")
    parser.add_argument("--nvme", required=True, metavar="DIR", help="a directory on the drive; 4 GB are used, then deleted")
    parser.add_argument("--env", metavar="DIR", help="the Python environment, made where it is missing")
    parser.add_argument("--rounds", type=int, default=2, help="0: the table of --log alone")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each run; default 3")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them; default 1")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: one per usable core")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="one layer, 64 tokens: DeepSpeed compiles what it needs")
    parser.add_argument("--log", metavar="FILE", default="loops.jsonl", help="default: %(default)s")
    args = parser.parse_args()
    args.strata = Path(args.strata).resolve()
    return args


def run(args, data, scratch, variant):
    """One run of one variant, its files deleted afterwards."""
    nvme, out = scratch / "state", scratch / "out.json"
    nvme.mkdir()
    script, *options = (str(nvme) if word == "NVME" else word for word in VARIANTS[variant])
    tiny = ["--layers", "1", "--seq-len", "64"] if args.tiny else []
    command = [sys.executable, str(HERE / script), "--data", str(data), "--out", str(out), "--threads", str(args.threads),
               "--warmup", str(args.warmup), "--steps", str(args.steps), *options, *tiny]
    more = {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(HERE.parents[1] / "python"),
            "STRATA_PROGRAM": str(args.strata), "STRATA_LIBRARY": str(args.strata.parents[1] / "libstrata.so")}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**os.environ, **more})
    shutil.rmtree(nvme)
    if done.returncode != 0:
        sys.exit(f"loops: {variant} exits with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-30:]))
    return json.loads(out.read_text())


def roofs(args):
    """Bytes a second of the drive, reads and writes together, and of memory in the traffic of the update."""

    def rows(*command):
        done = subprocess.run([args.strata, "bench", *command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    optim = ("optim", "--layout", "fp32", "--params", "64M", "--repeats", "3", "--threads", str(args.threads))
    return {"drive_rate": max(row["bw_bytes"] for row in rows("io", args.nvme, "--pattern", "rw", "--repeats", "2")),
            "memory_rate": max((row["roof_gb_per_s"] or 0) * 1e9 for row in rows(*optim))}


def note(args, **row):
    with open(args.log, "a", encoding="ascii") as file:
        file.write(json.dumps(row) + "\n")
    if "steps" in row:
        print(f"loops: {row['variant']}: median step {statistics.median(one['step'] for one in row['steps']):.2f} s, "
              f"update {statistics.median(one['update'] for one in row['steps']):.2f} s, "
              f"peak {row['peak_rss_bytes'] / 1e9:.2f} GB", file=sys.stderr, flush=True)


def print_table(args):
    lines = [json.loads(line) for line in Path(args.log).read_text().splitlines()]
    rows = {}
    for variant in VARIANTS:
        mine = [line for line in lines if line.get("variant") == variant]
        if mine:
            steps = [step for line in mine for step in line["steps"]]
            rows[variant] = {key: statistics.median(step[key] for step in steps) for key in COLUMNS}
            rows[variant]["peak"] = max(line["peak_rss_bytes"] for line in mine)
    base = rows["none"]
    parameters = next(line["parameters"] for line in lines if "parameters" in line)
    print(f"GPT-2 124M, fp32, 1024 tokens a step; {cpu_name()}, {args.threads} threads")
    print(f"{'':<22}{'step s':>8}{'forward':>9}{'backward':>10}{'update':>8}{'peak GB':>9}{'optimizer GB':>14}")
    for variant, row in rows.items():
        print(f"{variant:<22}{row['step']:>8.2f}{row['forward']:>9.2f}{row['backward']:>10.2f}{row['update']:>8.2f}"
              f"{row['peak'] / 1e9:>9.2f}{(row['peak'] - base['peak']) / 1e9:>14.2f}")
    own = [name for name in ("strata-memory", "strata-nvme", "engine-memory", "engine-nvme") if name in rows]
    for ours in own:
        kind, moved = ("drive_rate", STATE_BYTES) if ours.endswith("nvme") else ("memory_rate", MEMORY_BYTES)
        rate = statistics.median(line[kind] for line in lines if kind in line)
        row, bound = rows[ours], moved * parameters / rate
        ratio = row["step"] / (row["forward"] + row["backward"] + base["update"] + bound)
        print(f"{ours}: {moved} bytes a parameter at {rate / 1e9:.2f} GB/s take {bound:.2f} s; the step is {ratio:.3f} of "
              "forward, backward, clipping and that; 1.03 wanted")
    theirs = {name: row for name, row in rows.items() if name.startswith("zero")}
    if theirs:
        best = min(theirs, key=lambda name: theirs[name]["step"])
        for ours in own:
            print(f"{ours}: {theirs[best]['step'] / rows[ours]['step']:.2f} times as fast as the fastest of DeepSpeed ({best})")
    nvme = [row["peak"] for name, row in theirs.items() if "nvme" in name]
    for ours in own if nvme else ():
        if not ours.endswith("nvme"):
            continue
        ratio = (rows[ours]["peak"] - base["peak"]) / (min(nvme) - base["peak"])
        print(f"{ours}: {ratio:.2f} of DeepSpeed's least memory for the optimizer with state on NVMe; 0.33 wanted")


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the scratch directory goes
    with tempfile.TemporaryDirectory(prefix="peers.", dir=args.nvme) as made:
        scratch = Path(made)
        data = scratch / "random.bin"
        write_random_tokens(data, 1024 * (args.warmup + args.steps + 1))
        for _ in range(args.rounds):
            if not args.tiny:
                note(args, **roofs(args))
            for variant in args.variants.split(","):
                result = run(args, data, scratch, variant)
                if not args.tiny:
                    note(args, variant=variant, **result)
    if not args.tiny:
        print_table(args)


if __name__ == "__main__":
    main()
