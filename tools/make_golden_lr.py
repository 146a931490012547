#!/usr/bin/env python3
"""Make tests/golden/lr_schedules.json: the rates of transformers' schedulers over whole runs.

Never run by tests or CI; its output is committed.  Needs torch and transformers; with --check it compares instead of writing:

    python3 tools/make_golden_lr.py [--check] [FILE]
"""
import argparse
import json
import math
import os
import sys

import torch
import transformers

LR = 3e-4
# name, steps, warmup_steps, warmup_ratio, lr_scheduler_kwargs as in TrainingArguments
CASES = [("linear", 20, 0, 0.0), ("linear", 20, 6, 0.0), ("linear", 7, 0, 0.1), ("linear", 3, 9, 0.0), ("cosine", 20, 0, 0.0),
         ("cosine", 20, 5, 0.0), ("cosine", 31, 0, 0.25), ("cosine", 1, 0, 0.0), ("constant", 5, 3, 0.0),
         ("constant_with_warmup", 12, 4, 0.5), ("constant_with_warmup", 12, 0, 0.3), ("constant_with_warmup", 4, 0, 0.0),
         ("cosine_with_min_lr", 20, 5, 0.0, {"min_lr": 3e-5}), ("cosine_with_min_lr", 31, 0, 0.25, {"min_lr_rate": 0.1}),
         ("cosine_with_min_lr", 12, 0, 0.0, {"min_lr": 0.0}), ("cosine_with_min_lr", 9, 2, 0.0, {"min_lr_rate": 1.5})]


def rates(name, steps, warmup_steps, warmup_ratio, kwargs=None):
    """What Trainer's optimizer steps use: one rate each, the scheduler stepping after the optimizer."""
    warmup = warmup_steps if warmup_steps > 0 else math.ceil(steps * warmup_ratio)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                                           scheduler_specific_kwargs=kwargs)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", nargs="?", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden",
                                                                "lr_schedules.json"))
    args = parser.parse_args()
    cases = [{"type": c[0], "steps": c[1], "warmup_steps": c[2], "warmup_ratio": c[3], **(c[4] if len(c) > 4 else {}), "rates": rates(*c)}
             for c in CASES]
    if args.check:
        return 0 if json.load(open(args.file))["cases"] == cases else 1
    with open(args.file, "w", encoding="utf-8") as f:
        json.dump({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "lr": LR, "cases": cases}, f,
                  indent=1)
        f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
