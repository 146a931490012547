#!/usr/bin/env python3
"""deepspeed_zero3.py - one table: a step of GPT-2 124M with its optimizer state on NVMe, strata against DeepSpeed's ZeRO-3.

Started by deepspeed_zero3.sh, which makes the environment.  Every run is a fresh process on the same directory, the same tokens,
the same number of threads; runs are interleaved (strata, fp32, strata, bf16, ..., strata), so that a change of the machine's mood
meets both.  DeepSpeed runs with its own defaults and with reads and writes pipelined over small sub-groups.
Figures are medians over the timed steps of all rounds.  Only the standard library is used here.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKENS_MAGIC = 20240520  # llm.c's token file, version 1: 256 words of header, then 16-bit tokens
GPT2_VOCABULARY = 50257
BYTES_NEEDED = 6 << 30  # of disk: DeepSpeed's fp32 master, two moments and gradients, strata's 10 bytes a parameter, to spare
SPEED_TARGET = 2.0  # times as fast as the fastest of theirs
MEMORY_TARGET = 1 / 3  # of the smallest of theirs
PIPELINED = ("--pipeline", "--sub-group", "20000000")  # several sub-groups, so that there is something to overlap
VARIANTS = {
    "fp32": ("--dtype", "fp32"),
    "bf16": ("--dtype", "bf16"),
    "fp32-pipelined": ("--dtype", "fp32", *PIPELINED),
    "bf16-pipelined": ("--dtype", "bf16", *PIPELINED),
}


def parse_args():
    parser = argparse.ArgumentParser(prog="deepspeed_zero3.sh", description=__doc__.split("\n")[0])
    parser.add_argument("--strata", required=True, metavar="BINARY", help="the program, such as build/release/cli/strata")
    parser.add_argument("--nvme", required=True, metavar="DIR", help="a directory on the drive; 6 GB are used, then deleted")
    parser.add_argument("--env", metavar="DIR", help="the Python environment, made where it is missing")
    parser.add_argument("--data", metavar="FILE", help="token file; default: seeded random tokens")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each run; default 5")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them; default 2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: one per usable core")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of DeepSpeed's runs; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object instead of the table")
    args = parser.parse_args()
    args.strata = str(Path(args.strata).resolve())
    args.variants = args.variants.split(",")
    unknown = [name for name in args.variants if name not in VARIANTS]
    if unknown:
        parser.error(f"--variants: {unknown[0]} is none of {', '.join(VARIANTS)}")
    return args


def say(text):
    print(f"deepspeed_zero3: {text}", file=sys.stderr, flush=True)


def write_random_tokens(path, count):
    rng = random.Random(0)
    header = [TOKENS_MAGIC, 1, count] + [0] * 253
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header))
        file.write(struct.pack(f"<{count}H", *(rng.randrange(GPT2_VOCABULARY) for _ in range(count))))


def run(command, **more):
    """Runs a command with its output kept; on failure shows the end of it and leaves."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"deepspeed_zero3: {command[0]} exits with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-30:]))


def run_strata(args, data, scratch):
    """One run of strata; the steps after the warm-up, in seconds."""
    metrics = scratch / "strata.jsonl"
    nvme = scratch / "strata"
    nvme.mkdir(exist_ok=True)
    run([args.strata, "train", "--model", "gpt2", "--data", str(data), "--config", str(HERE / "strata_step.json"), "--nvme",
         str(nvme), "--seq-len", "1024", "--max-steps", str(args.warmup + args.steps), "--threads", str(args.threads),
         "--metrics", str(metrics), "--quiet"])
    rows = []
    summary = {}
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        summary = record.get("summary", summary)
        if record.get("step", 0) <= args.warmup:
            continue
        ms = record["time_ms"]
        rows.append({"step": record["step_seconds"], "forward": ms["forward"] / 1e3, "backward": ms["backward"] / 1e3,
                     "update": (ms["stall"] + ms["other"]) / 1e3, "stall": ms["stall"] / 1e3, "loss": record["loss"],
                     "update_busy": record["busy_ms"]["update"] / 1e3})
    metrics.unlink()
    return {"who": "strata", "variant": "bf16", "steps": rows, "peak_rss_bytes": summary["peak_rss_bytes"]}


def run_deepspeed(args, data, scratch, variant, more=()):
    """One run of DeepSpeed, its files deleted afterwards."""
    nvme = scratch / "deepspeed"
    out = scratch / "deepspeed.json"
    nvme.mkdir()
    command = [sys.executable, str(HERE / "deepspeed_step.py"), "--data", str(data), "--nvme", str(nvme), "--out", str(out),
               "--threads", str(args.threads), "--warmup", str(args.warmup), "--steps", str(args.steps), *VARIANTS[variant], *more]
    run(command, env={**os.environ, "OMP_NUM_THREADS": str(args.threads), "DS_ACCELERATOR": "cpu"})
    result = json.loads(out.read_text())
    shutil.rmtree(nvme)
    out.unlink()
    return {**result, "variant": variant}


def run_rounds(args, data, scratch):
    """All runs, in the order in which they were made."""
    say("a tiny run first: DeepSpeed compiles its async_io and cpu_adam where that was not done yet")
    run_deepspeed(args, data, scratch, "bf16", ("--layers", "1", "--seq-len", "64", "--warmup", "0", "--steps", "1"))
    load = os.getloadavg()[0]
    runs = []
    for index in range(args.rounds):
        for variant in args.variants:
            runs.append(noted(index, run_strata(args, data, scratch)))
            runs.append(noted(index, run_deepspeed(args, data, scratch, variant)))
    runs.append(noted(args.rounds - 1, run_strata(args, data, scratch)))
    return runs, load


def noted(index, one):
    """Says how a run went, and which round it belongs to."""
    say(f"round {index + 1}: {one['who']} {one['variant']}: median step {median_of([one], 'step'):.2f} s, "
        f"peak {one['peak_rss_bytes'] / 1e9:.2f} GB")
    return {**one, "round": index}


def median_of(runs, key):
    return statistics.median(row[key] for one in runs for row in one["steps"])


def table_of(args, runs):
    """Medians per who and variant, ours first."""
    rows = []
    for who, variant in (("strata", "bf16"), *(("deepspeed", name) for name in args.variants)):
        mine = [one for one in runs if (one["who"], one["variant"]) == (who, variant)]
        row = {"who": who, "variant": variant, **{key: median_of(mine, key) for key in ("step", "forward", "backward", "update")}}
        row["step_min"] = min(step["step"] for one in mine for step in one["steps"])
        row["peak_rss_bytes"] = max(one["peak_rss_bytes"] for one in mine)
        rows.append(row)
    return rows


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def report(args, runs, load):
    """What --json prints, and what the table is made from."""
    ours, *theirs = rows = table_of(args, runs)
    fastest = min(theirs, key=lambda row: row["step"])
    lightest = min(theirs, key=lambda row: row["peak_rss_bytes"])
    versions = next(one["versions"] for one in runs if one["who"] == "deepspeed")
    imported = max(one["rss_imported_bytes"] for one in runs if one["who"] == "deepspeed")
    return {
        "cpu": cpu_name(), "threads": args.threads, "load_before": load, "rounds": args.rounds, "steps": args.steps,
        "versions": versions, "rss_imported_bytes": imported, "table": rows,
        "speed_ratio": fastest["step"] / ours["step"], "fastest": fastest["variant"],
        "memory_ratio": ours["peak_rss_bytes"] / lightest["peak_rss_bytes"], "lightest": lightest["variant"],
        "stall": median_of([one for one in runs if one["who"] == "strata"], "stall"),
        "update_busy": median_of([one for one in runs if one["who"] == "strata"], "update_busy"), "runs": runs,
    }


def print_table(what):
    word = {True: "met", False: "missed"}
    print(f"GPT-2 124M, 1024 tokens a step, optimizer state on NVMe; {what['cpu']}, {what['threads']} threads")
    print(f"medians of {what['rounds']} rounds x {what['steps']} steps; torch {what['versions']['torch']}, "
          f"DeepSpeed {what['versions']['deepspeed']}; load before: {what['load_before']:.1f}"
          + ("" if what["load_before"] < 1 else " (the machine was not quiet)"))
    print(f"{'':<11}{'':<16}{'step s':>9}{'min':>9}{'forward':>9}{'backward':>10}{'update':>9}{'peak RSS':>12}")
    for row in what["table"]:
        print(f"{row['who']:<11}{row['variant']:<16}{row['step']:>9.2f}{row['step_min']:>9.2f}{row['forward']:>9.2f}"
              f"{row['backward']:>10.2f}{row['update']:>9.2f}{row['peak_rss_bytes'] / 1e9:>9.2f} GB")
    print(f"update: theirs is engine.step(); ours all that is neither forward nor backward, {what['stall']:.2f} s of it stalled "
          f"({what['update_busy']:.2f} s of the workers go to the optimizer)")
    print(f"peak RSS: {what['rss_imported_bytes'] / 1e9:.2f} GB of theirs is there once the libraries are imported")
    print(f"speed:  {what['speed_ratio']:.2f} times the fastest of theirs ({what['fastest']}); at least {SPEED_TARGET:.1f} wanted: "
          f"{word[what['speed_ratio'] >= SPEED_TARGET]}")
    print(f"memory: {what['memory_ratio']:.2f} of the smallest of theirs ({what['lightest']}); at most {MEMORY_TARGET:.2f} wanted: "
          f"{word[what['memory_ratio'] <= MEMORY_TARGET]}")


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the scratch directory goes
    os.makedirs(args.nvme, exist_ok=True)
    free = shutil.disk_usage(args.nvme).free
    if free < BYTES_NEEDED:
        sys.exit(f"deepspeed_zero3: {args.nvme}: {free / 1e9:.1f} GB are free, {BYTES_NEEDED / 1e9:.1f} are needed")
    with tempfile.TemporaryDirectory(prefix="peers.", dir=args.nvme) as made:
        scratch = Path(made)
        data = Path(args.data) if args.data else scratch / "random.bin"
        if not args.data:
            write_random_tokens(data, 1024 * (args.warmup + args.steps + 1))
        what = report(args, *run_rounds(args, data, scratch))
    if args.json:
        print(json.dumps(what))
    else:
        print_table(what)


if __name__ == "__main__":
    main()
