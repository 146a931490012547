#!/usr/bin/env python3
"""Is the chosen plan the fastest?  Measures its step and those of the nearest settings that a user could write, in turns.

    bench/choice.py STRATA DIR MODEL [--rounds N] [--steps N] [--budget DEVICE:HOST]... [-- options of strata bench step]

Each budget is planned with the rates of one machine file that is measured first, and each setting runs N rounds of `strata bench
step --only`; rounds go through all settings, so that a disturbance meets every one.  Printed are medians over the rounds, the
predictions, and how far the chosen plan is behind the fastest.  DIR: on the drive, for swap files.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

# One change each from what is chosen; those that give the chosen program again measure the noise.
SETTINGS = [
    ("chosen", []),
    ("serial", ["strata.update=serial"]),
    ("gated", ["strata.update=gated"]),
    ("kept", ["strata.activations=kept"]),
    ("recomputed", ["strata.activations=recomputed"]),
    ("chunks of 1 Mi", ["strata.chunk_size=1048576"]),
    ("chunks of 16 Mi", ["strata.chunk_size=16777216"]),
    ("cache none", ["strata.cache=0"]),
    ("horizontal", ["strata.accumulation=horizontal"]),
]


def run(command):
    """The object that a command prints, or None: it is refused."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 3 or "strata.activations" in done.stderr:
        return None
    if done.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    return json.loads(done.stdout.splitlines()[0])


def measure(args, machine, budget, rounds):
    device, host = budget.split(":")
    seconds = {name: [] for name, _ in SETTINGS}
    predicted = {}
    for _ in range(rounds):
        for name, words in SETTINGS:
            command = [args.strata, "bench", "step", "--model", args.model, "--only", "--json", "--steps", str(args.steps)]
            command += ["--machine", machine, "--device-memory", device, "--host-memory", host, "--nvme", args.dir]
            for word in words:
                command += ["--set", word]
            row = run(command + args.options)
            if row is not None:
                seconds[name].append(row["seconds"])
                predicted[name] = row["predicted_ms"] / 1e3
    return {name: statistics.median(s) for name, s in seconds.items() if s}, predicted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("dir")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--budget", action="append", required=True, help="DEVICE:HOST, such as 1GiB:2GiB")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    args.options = rest
    with tempfile.TemporaryDirectory() as scratch:
        machine = os.path.join(scratch, "machine.json")
        subprocess.run(
            [args.strata, "info", "--measure", "--model", args.model, "--nvme", args.dir, "--out", machine],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for budget in args.budget:
            seconds, predicted = measure(args, machine, budget, args.rounds)
            fastest = min(seconds.values())
            print("%s, device and host %s: chosen %.3f of the fastest" % (args.model, budget, seconds["chosen"] / fastest))
            for name, median in sorted(seconds.items(), key=lambda item: item[1]):
                print("  %-16s %8.3f s   predicted %8.3f s" % (name, median, predicted[name]))


if __name__ == "__main__":
    main()
