#!/usr/bin/env python3
"""ddp.py - ranks against PyTorch DDP: the same tiny models, weights, windows of data and steps, in fp32.

Trains a tiny GPT-2 and a tiny Llama with torch's DistributedDataParallel (gloo, 2 processes), and with strata as 1, 2 and 4
ranks of every ZeRO stage, with clipping and weight decay, and prints the largest relative difference of a step's loss.
All runs of strata must have one digest, too.  DeepSpeed's ZeRO-3 (2 processes, gloo) goes with it where it is installed.
Exit code 1: a loss differs by 1e-5 or more, or a digest does.
"""

import argparse
import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, SEQ, MICROS, LEAVES, LIMIT = 20, 32, 8, 4, 1e-5
ADAM = dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)
CLIP = 0.5
WORD = 2**32 - 1


def parse_args():
    parser = argparse.ArgumentParser(prog="ddp.sh", description=__doc__.split("\n")[0])
    parser.add_argument("--strata", metavar="BINARY", help="the program, such as build/release/cli/strata")
    parser.add_argument("--env", metavar="DIR", help="the Python environment, made where it is missing")
    parser.add_argument("--models", default="gpt2,llama")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks of strata's runs; default: %(default)s")
    parser.add_argument("--peer", choices=["ddp", "deepspeed"], help=argparse.SUPPRESS)  # a process of theirs
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- what both sides read: weights, and the windows of strata's permutation (core/base/rng.c) ---


def philox(seed, stream, index):
    c, k = [index & WORD, index >> 32, stream & WORD, stream >> 32], [seed & WORD, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & WORD, p0 >> 32 ^ c[3] ^ k[1], p0 & WORD]
        k = [k[0] + 0x9E3779B9 & WORD, k[1] + 0xBB67AE85 & WORD]
    return c[0]


def permuted(index, count, seed, epoch):
    half = 1
    while half < 32 and (count - 1) >> 2 * half != 0:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for step in range(6):
            left, right = right, left ^ (philox(seed, epoch, step << 32 | right) & mask)
        index = left << half | right
        if index < count:
            return index


def window(text, position):
    count = (len(text) - 1) // SEQ
    first = permuted(position % count, count, 0, position // count) * SEQ
    return text[first:first + SEQ + 1]


def make_model(name, scratch):
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    torch.manual_seed(1)
    config = {
        "gpt2": lambda: GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                                   attn_pdrop=0.0, initializer_range=0.1),
        "llama": lambda: LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                     tie_word_embeddings=False, initializer_range=0.1)}[name]()
    AutoModelForCausalLM.from_config(config).save_pretrained(scratch / "model")


# --- a process of a peer ---


def deepspeed_engine(model, micros):
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micros, "gradient_clipping": CLIP,
              "optimizer": {"type": "AdamW", "params": {**ADAM, "torch_adam": True}}, "zero_optimization": {"stage": 3}}
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def peer_losses(kind, scratch):
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    micros = MICROS // ranks
    text = (scratch / "text.txt").read_bytes()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(scratch / "model", dtype=torch.float32, attn_implementation="eager").train()
    if kind == "deepspeed":
        engine = deepspeed_engine(model, micros)
    else:
        dist.init_process_group("gloo")
        engine = torch.nn.parallel.DistributedDataParallel(model)
        adam = torch.optim.AdamW(model.parameters(), foreach=False, **ADAM)
    losses = []
    for step in range(STEPS):
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(micros):
            row = torch.tensor([list(window(text, step * MICROS + rank * micros + micro))])
            logits = engine(input_ids=row[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[0], row[0, 1:])
            total += loss.detach().double() / MICROS
            if kind == "deepspeed":
                engine.backward(loss)
                engine.step()
            else:
                (loss / micros).backward()
        if kind != "deepspeed":
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
            adam.step()
            adam.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item())
    if rank == 0:
        (scratch / f"{kind}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


# --- several processes of one run ---


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(command, ranks):
    """Standard output of rank 0, or the end of what the first that fails has written."""
    env = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    if ranks == 1:
        env.pop("WORLD_SIZE")
    started = [subprocess.Popen(command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(ranks)]
    texts = [process.communicate()[0] for process in started]
    for rank, process in enumerate(started):
        if process.returncode != 0:
            sys.exit(f"ddp: rank {rank} of {ranks}: {' '.join(command)}: exit code {process.returncode}\n{texts[rank][-2000:]}")
    return texts[0]


def run_peer(kind, scratch):
    run_ranks([sys.executable, __file__, "--peer", kind, "--scratch", str(scratch)], 2)
    return json.loads((scratch / f"{kind}.json").read_text())


def run_strata(strata, scratch, ranks, stage):
    """Losses, and the digests' lines."""
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": MICROS // ranks, "gradient_clipping": CLIP,
              "optimizer": {"type": "AdamW", "params": ADAM}, "zero_optimization": {"stage": stage},
              "strata": {"decay_all": True, "leaves": LEAVES}}
    if stage == 3:
        config["zero_optimization"]["offload_param"] = {"device": "cpu"}
    if stage > 0:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    (scratch / "config.json").write_text(json.dumps(config))
    out = run_ranks([strata, "train", "--model", str(scratch / "model"), "--config", str(scratch / "config.json"), "--data",
                     str(scratch / "text.txt"), "--tokenizer", "byte", "--seq-len", str(SEQ), "--max-steps", str(STEPS), "--threads", "1",
                     "--device-memory", "256MiB", "--host-memory", "1GiB", "--metrics", str(scratch / "metrics.jsonl"), "--overwrite",
                     "--digest", "--quiet"], ranks)
    rows = [json.loads(line) for line in (scratch / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "step" in row and "loss" in row], [line for line in out.splitlines() if "_digest" in line]


def error_of(have, want):
    return max(abs(a - b) / abs(b) for a, b in zip(have, want, strict=True))


def compare(args, name, scratch):
    """Prints a row for each run; how many are wrong."""
    wrong, first = 0, None
    make_model(name, scratch)
    want = run_peer("ddp", scratch)
    print(f"{name:<6} {'DDP, 2 processes':<32} loss {want[0]:.6f} to {want[-1]:.6f}", flush=True)
    if importlib.util.find_spec("deepspeed") is not None:
        print(f"{name:<6} {'DeepSpeed ZeRO-3, 2 processes':<32} error {error_of(run_peer('deepspeed', scratch), want):.1e}", flush=True)
    for ranks in map(int, args.ranks.split(",")):
        for stage in range(4):
            losses, digests = run_strata(args.strata, scratch, ranks, stage)
            first = first or digests
            error = error_of(losses, want)
            good = error < LIMIT and digests == first and len(digests) == 2
            wrong += not good
            print(f"{name:<6} {f'strata, {ranks} ranks, stage {stage}':<32} error {error:.1e}, {' '.join(digests)}"
                  f"{'' if good else '  WRONG'}", flush=True)
    return wrong


def main():
    args = parse_args()
    if args.peer:
        peer_losses(args.peer, Path(args.scratch))
        return 0
    args.strata = str(Path(args.strata).resolve())
    wrong = 0
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / "text.txt").write_bytes(bytes(random.Random(1).choices(b"abcdefghijklmnop qrst.", k=SEQ * 120 + 1)))
            wrong += compare(args, name, Path(made))
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
