#!/usr/bin/env python3
"""What PyTorch reaches on this machine, beside which strata's figures stand: tools/compare_torch.py [--small] [DEVICE]

  - its matmuls (cublasLt) of llama-1b's shapes at 8 x 2048 tokens, and of the head in runs of 2048 and of 8192 rows;
  - scaled_dot_product_attention, flash and cuDNN's, causal, with and without deterministic algorithms: head sizes 64 and 128,
    2048 and 8192 positions; keys and values of 8 heads are repeated for 32;
  - a copy within the device's memory.
In bf16, normal values; medians of 20 after 5.  Of attention the products below the diagonal count, 2 forward and 5 backward.
One line each as it is measured, with `--small` of toy sizes; DEVICE is cuda, cuda:N or cpu.  Exit code 77 without torch or the device."""
import statistics
import sys
import time

SMALL = "--small" in sys.argv
DEVICE = ([word for word in sys.argv[1:] if not word.startswith("-")] or ["cuda"])[0]
try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attention
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)
if DEVICE.startswith("cuda") and not torch.cuda.is_available():
    print("skipped: torch sees no GPU", file=sys.stderr)
    sys.exit(77)

TOKENS, HIDDEN, HEADS, KV_HEADS = (64, 32, 4, 1) if SMALL else (16384, 2048, 32, 8)
WIDTHS = {"qkv": (3 * HIDDEN // 2, HIDDEN), "out": (HIDDEN, HIDDEN), "gate, up": (8 * HIDDEN, HIDDEN), "down": (HIDDEN, 4 * HIDDEN)}
HEAD_ROWS = (16, 32) if SMALL else (2048, 8192)
ATTENTION = ((64, 64, 2),) if SMALL else ((64, 2048, 8), (64, 8192, 2), (128, 2048, 4), (128, 8192, 1))
COPY = 1 << (20 if SMALL else 30)


def seconds(work):
    """The median of 20 after 5."""
    taken = []
    for _ in range(25):
        if DEVICE.startswith("cuda"):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            work()
            last.record()
            torch.cuda.synchronize()
            taken.append(first.elapsed_time(last) * 1e-3)
        else:
            first = time.perf_counter()
            work()
            taken.append(time.perf_counter() - first)
    return statistics.median(taken[5:])


def normal(*sizes):
    return torch.randn(*sizes, device=DEVICE, dtype=torch.bfloat16)


def say(what, took, flop):
    print(f"{what}: {took * 1e6:.0f} us, {flop / took * 1e-12:.4g} TFLOP/s", flush=True)


def products(name, rows, columns, inner):
    """y = x w', dx = dy w, dw = dy' x."""
    x, w, dy = normal(rows, inner), normal(columns, inner), normal(rows, columns)
    for which, work in (("forward", lambda: x @ w.t()), ("dx", lambda: dy @ w), ("dw", lambda: dy.t() @ x)):
        say(f"matmul {name} {rows} x {columns} x {inner} {which}", seconds(work), 2 * rows * columns * inner)


def attend(head, positions, sequences, backend):
    q = normal(sequences, HEADS, positions, head).requires_grad_()
    k, v = (normal(sequences, KV_HEADS, positions, head).repeat_interleave(HEADS // KV_HEADS, 1).requires_grad_() for _ in range(2))
    product = positions * positions * head * HEADS * sequences  # half of 2 m n k
    torch.utils.deterministic.fill_uninitialized_memory = False  # with NaN, which would count as a part of the algorithm
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        name = f"{backend.name.lower()}{', deterministic' if deterministic else ''}, head {head}, {sequences} x {positions}"
        try:
            with sdpa_kernel(backend):
                o = attention(q, k, v, is_causal=True)
                do = torch.randn_like(o)
                say(f"{name} forward", seconds(lambda: attention(q, k, v, is_causal=True)), 2 * product)
                say(f"{name} backward", seconds(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)), 5 * product)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0][:120]}", flush=True)
    torch.use_deterministic_algorithms(False)


def main():
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    for name, (columns, inner) in WIDTHS.items():
        products(name, TOKENS, columns, inner)
    for rows in HEAD_ROWS:
        products("head", rows, HEAD_ROWS[0], HIDDEN)
        products("head", rows, HEAD_ROWS[1], HIDDEN)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for head, positions, sequences in ATTENTION:
            attend(head, positions, sequences, backend)
    source, to = (torch.randn(COPY, device=DEVICE) for _ in range(2))
    took = seconds(lambda: to.copy_(source))
    print(f"copy of {4 * COPY >> 20} MiB: {8 * COPY / took * 1e-12:.3g} TB/s read and written", flush=True)


main()
