#!/usr/bin/env python3
"""optimizers.py - AdamW over parameters in memory: strata's kernels, torch's fused AdamW and DeepSpeedCPUAdam.

Started by optimizers.sh.  All run in the same minutes on the same number of threads, in turns: strata, DeepSpeed, torch, and
again.  Theirs are timed as a caller sees them, around step(); strata by `strata bench optim`.  One flat parameter, so
that neither pays for many small tensors.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LAYOUTS = {
    "split": "bf16 weight + low half, bf16 gradient",
    "full": "fp32 master, bf16 gradient, bf16 copy",
    "fp32": "fp32 master and gradient",
}
PEERS = {
    "deepspeed": "fp32 master and gradient",
    "deepspeed_casts": "deepspeed, and widens, unscales bf16 gradients, writes a bf16 copy",
    "torch_fused": "fp32 master and gradient",
}
DEFAULT_LAYOUT, SAME_WORK_LAYOUT = "split", "fp32"
CASTS_TARGET = 2.0  # our default layout against DeepSpeed with its casts
ALONE_TARGET = 1.1  # against each of theirs alone, casts left out
HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
UNSCALE = 2.0**-10


def parse_args():
    parser = argparse.ArgumentParser(prog="optimizers.sh", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--strata", required=True, metavar="BINARY", help="the program, such as build/release/cli/strata")
    parser.add_argument("--env", metavar="DIR", help="the Python environment, made where it is missing")
    parser.add_argument("--params", type=int, default=64 << 20, help="default: 64 Mi; 48 bytes of memory are used for each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each in a round; default 5")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: one per usable core")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object instead of the table")
    args = parser.parse_args()
    args.strata = str(Path(args.strata).resolve())
    return args


def say(text):
    print(f"optimizers: {text}", file=sys.stderr, flush=True)


def strata(args, *command):
    """Standard output of one run of the program."""
    done = subprocess.run([args.strata, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"optimizers: strata {' '.join(command)} exits with {done.returncode}:\n{done.stderr}")
    return done.stdout


def best_isa(args):
    return json.loads(strata(args, "info", "--json"))["cpu"]["kernels_used"]


def strata_seconds(args, isa):
    """Least and median seconds of each layout in one round, and the ratio to the lower of its roofs."""
    lines = strata(args, "bench", "optim", "--layout", ",".join(LAYOUTS), "--params", str(args.params), "--repeats",
                   str(args.repeats), "--threads", str(args.threads), "--isa", isa, "--json").splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines) if row["variant"] == isa}
    return {name: {"least": rows[name]["seconds"], "median": rows[name]["seconds_median"], "roof_ratio": rows[name]["ratio"]}
            for name in LAYOUTS}


class Peers:
    """Both libraries over one set of parameters and gradients, each with moments of its own."""

    def __init__(self, args):
        # Before the libraries are loaded.  DeepSpeed's loops run on torch's OpenMP.
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        import deepspeed
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
        self.repeats = args.repeats
        self.versions = {"torch": torch.__version__, "deepspeed": deepspeed.__version__}
        self.parameter = torch.nn.Parameter(torch.empty(args.params).normal_(0, 0.02))
        self.gradient16 = torch.empty(args.params).normal_(0, 1e-3 / UNSCALE).to(torch.bfloat16)
        self.parameter.grad = self.gradient16.to(torch.float32).mul_(UNSCALE)
        self.copy16 = self.parameter.detach().to(torch.bfloat16)
        self.deepspeed = DeepSpeedCPUAdam([self.parameter], adamw_mode=True, **HYPER)
        self.torch = torch.optim.AdamW([self.parameter], fused=True, **HYPER)
        self.no_grad = torch.no_grad

    def deepspeed_casts(self):
        """What ZeRO does around it, but for the norm: a gradient buffer filled and scaled in place, the weights copied out."""
        with self.no_grad():
            self.parameter.grad.copy_(self.gradient16)
            self.parameter.grad.mul_(UNSCALE)
            self.deepspeed.step()
            self.copy16.copy_(self.parameter)

    def timed(self, step):
        """Seconds of each repeat; one before them is not counted."""
        taken = []
        for _ in range(self.repeats + 1):
            begin = time.perf_counter()
            step()
            taken.append(time.perf_counter() - begin)
        return {"least": min(taken[1:]), "median": statistics.median(taken[1:])}

    def seconds(self):
        return {"deepspeed": self.timed(self.deepspeed.step), "deepspeed_casts": self.timed(self.deepspeed_casts),
                "torch_fused": self.timed(self.torch.step)}


def run_rounds(args, isa, theirs):
    rounds = []
    for index in range(args.rounds):
        one = {**strata_seconds(args, isa), **theirs.seconds()}
        rounds.append(one)
        say(f"round {index + 1}: " + ", ".join(f"{name} {row['least'] * 1e9 / args.params:.3f}" for name, row in one.items())
            + " ns per parameter")
    return rounds


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def report(args, isa, versions, rounds, load):
    """What --json prints, and what the table is made from.  Ratios are between the least times of all rounds."""
    table = {}
    for name in (*LAYOUTS, *PEERS):
        row = {"ns": min(one[name]["least"] for one in rounds) * 1e9 / args.params,
               "ns_median": statistics.median(one[name]["median"] for one in rounds) * 1e9 / args.params}
        if name in LAYOUTS:
            row["roof_ratio"] = statistics.median(one[name]["roof_ratio"] for one in rounds)
        table[name] = row
    for name in LAYOUTS:
        table[name]["times"] = {peer: table[peer]["ns"] / table[name]["ns"] for peer in PEERS}
    return {
        "cpu": cpu_name(), "threads": args.threads, "load_before": load, "params": args.params, "isa": isa,
        "versions": versions, "table": table, "rounds": rounds, "repeats": args.repeats,
    }


def print_verdict(what, layout, peer, target):
    times = what["table"][layout]["times"][peer]
    print(f"{layout:<16}{times:.2f} times as fast as {peer}; at least {target:.1f} wanted: {'met' if times >= target else 'missed'}")


def print_table(what):
    print(f"AdamW, {what['params']} parameters in memory; {what['cpu']}, {what['threads']} threads, {what['isa']}")
    print(f"{len(what['rounds'])} rounds x {what['repeats']} steps in turns; torch {what['versions']['torch']}, DeepSpeed "
          f"{what['versions']['deepspeed']}; load before: {what['load_before']:.1f}"
          + ("" if what["load_before"] < 1 else " (the machine was not quiet)"))
    print(f"{'ns per parameter':<17}{'least':>8}{'median':>8}   what")
    for name, row in what["table"].items():
        print(f"{name:<17}{row['ns']:>8.3f}{row['ns_median']:>8.3f}   {LAYOUTS.get(name) or PEERS[name]}")
    print(f"{'times as fast as':<17}" + "".join(f"{peer:>17}" for peer in PEERS) + f"{'of its roof':>17}")
    for name in LAYOUTS:
        row = what["table"][name]
        print(f"{name:<17}" + "".join(f"{row['times'][peer]:>17.2f}" for peer in PEERS) + f"{row['roof_ratio']:>17.2f}")
    print_verdict(what, DEFAULT_LAYOUT, "deepspeed_casts", CASTS_TARGET)
    for layout in (DEFAULT_LAYOUT, SAME_WORK_LAYOUT):
        for peer in ("deepspeed", "torch_fused"):
            print_verdict(what, layout, peer, ALONE_TARGET)


def main():
    args = parse_args()
    isa = best_isa(args)
    load = os.getloadavg()[0]
    say("loading the libraries: DeepSpeed compiles its cpu_adam where that was not done yet")
    theirs = Peers(args)
    what = report(args, isa, theirs.versions, run_rounds(args, isa, theirs), load)
    if args.json:
        print(json.dumps(what))
    else:
        print_table(what)


if __name__ == "__main__":
    main()
