#!/usr/bin/env python3
"""Make tests/golden/optim: what torch.optim gives over 100 steps, for tests/kernels/test_update_golden.c.

Never run by tests or CI; its output is committed.  Needs torch and numpy (Debian: python3-torch):

    python3 tools/make_golden_optim.py [--out tests/golden/optim]

Parameters and gradients are not stored: both sides make them from Philox4x32-10 (core/base/rng.h), exactly representable in fp32.
Element i of stream s is  x = (w >> 8) * 2^-23 - 1  in [-1, 1), w being word i mod 4 of the block at index i / 4.
    parameter      x of stream 0
    gradient       x of stream t at step t = 1, 2, ...; in odd runs of 32 elements its magnitude; times 2^-(i mod 32), so that eps
                   counts among the last; and 0 where i mod 32 is 31

Files: cases.json (elements, steps, the hyper-parameters of each case), NAME.bin: little-endian fp32, per snapshot the
parameters, then the moments in torch's order; every stride-th element, all of them at the last step.
"""
import argparse
import json
import os
import platform

import numpy
import torch

SEED = 20240520
ELEMS, STEPS = 4096, 100
SNAPSHOTS = ((1, 17), (2, 17), (10, 17), (STEPS, 1))  # step, stride; 17: some elements of every class
SILENT_CLASS, CLASSES = 31, 32

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
CASES = {
    "adamw": ("AdamW", ADAM),
    "adam": ("Adam", ADAM),
    "adagrad": ("Adagrad", {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.01}),
    "sgd": ("SGD", {**SGD, "momentum": 0.0}),
    "sgd_momentum": ("SGD", SGD),
    "sgd_dampening": ("SGD", {**SGD, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd_nesterov": ("SGD", {**SGD, "weight_decay": 0.01, "nesterov": True}),
}
MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq"), "Adam": ("exp_avg", "exp_avg_sq"), "Adagrad": ("sum",), "SGD": ("momentum_buffer",)}


def philox(stream, blocks):
    """Words of `blocks` Philox4x32-10 blocks from index 0 on; core/base/rng.c, st_rng_block()."""
    low = numpy.uint64(0xFFFFFFFF)
    shift = numpy.uint64(32)
    index = numpy.arange(blocks, dtype=numpy.uint64)
    c = [index, numpy.zeros_like(index), numpy.full_like(index, stream), numpy.zeros_like(index)]
    k0, k1 = SEED & 0xFFFFFFFF, SEED >> 32
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ numpy.uint64(k0), p1 & low, (p0 >> shift) ^ c[3] ^ numpy.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return numpy.stack(c, axis=1).reshape(-1)


def uniform(stream):
    return (philox(stream, ELEMS // 4) >> numpy.uint64(8)).astype(numpy.float64) * 2.0**-23 - 1.0


def gradient(step):
    index = numpy.arange(ELEMS)
    x = uniform(step)
    x = numpy.where(index // CLASSES % 2 == 1, numpy.abs(x), x) * 2.0 ** -(index % CLASSES)
    return numpy.where(index % CLASSES == SILENT_CLASS, 0.0, x)


def make_optimizer(kind, hyper, parameter):
    common = {"lr": hyper["lr"], "weight_decay": hyper["weight_decay"], "foreach": False}
    if kind == "SGD":
        return torch.optim.SGD([parameter], momentum=hyper["momentum"], dampening=hyper["dampening"],
                               nesterov=hyper["nesterov"], **common)
    if kind == "Adagrad":
        return torch.optim.Adagrad([parameter], eps=hyper["eps"], **common)
    return getattr(torch.optim, kind)([parameter], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"], **common)


def planes_of(kind, parameter, optimizer):
    """Parameters, then moments; SGD without momentum keeps none."""
    state = optimizer.state[parameter]
    moments = [state[name] for name in MOMENTS[kind] if state.get(name) is not None]
    return [t.detach().numpy().copy() for t in (parameter, *moments)]


def train(kind, hyper):
    """The planes at every step of SNAPSHOTS."""
    parameter = torch.nn.Parameter(torch.tensor(uniform(0), dtype=torch.float32))
    optimizer = make_optimizer(kind, hyper, parameter)
    snapshots = []
    for step in range(1, STEPS + 1):
        parameter.grad = torch.tensor(gradient(step), dtype=torch.float32)
        optimizer.step()
        if any(step == at for at, _ in SNAPSHOTS):
            snapshots.append(planes_of(kind, parameter, optimizer))
    return snapshots


def make(name, out):
    kind, hyper = CASES[name]
    snapshots = train(kind, hyper)
    with open(os.path.join(out, name + ".bin"), "wb") as f:
        for (_, stride), planes in zip(SNAPSHOTS, snapshots):
            for plane in planes:
                f.write(plane[::stride].astype("<f4").tobytes())
    return {"name": name, "optimizer": kind, "planes": len(snapshots[-1]), **hyper}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "optim"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    write_json(
        os.path.join(args.out, "cases.json"),
        {
            "versions": {
                "torch": torch.__version__,
                "numpy": numpy.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "seed": SEED,
            "elems": ELEMS,
            "steps": STEPS,
            "snapshots": [{"step": step, "stride": stride} for step, stride in SNAPSHOTS],
            "cases": [make(name, args.out) for name in CASES],
        },
    )


if __name__ == "__main__":
    main()
