#!/usr/bin/env python3
"""deepspeed_step.py - times steps of GPT-2 124M under DeepSpeed's ZeRO-3 or -2 on its CPU accelerator.

One process, one rank, no launcher.  The optimizer's state goes where --state says: to NVMe through DeepSpeed's async_io,
or to host memory.  Weights stay in memory and nothing is recomputed in backward: its best case.  Writes one JSON object:
seconds per timed step for forward, backward and update (engine.step: reading the state, clipping, AdamW, writing it back),
and the peak resident memory of the process.
"""

import argparse
import json
import os
import resource
import struct
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TOKENS_MAGIC = 20240520  # llm.c's token file, version 1: 256 words of header, then 16-bit tokens


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="token file, as written by strata tokens")
    parser.add_argument("--out", required=True, help="where the JSON object goes; standard output is DeepSpeed's")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--state", choices=["nvme", "cpu"], default="nvme")
    parser.add_argument("--stage", type=int, choices=[2, 3], default=3)
    parser.add_argument("--nvme", help="directory for the state; what lies there is left to the caller to delete")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12, help="fewer for a quick trial")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sub-group", type=int, default=1_000_000_000, help="DeepSpeed's sub_group_size")
    parser.add_argument("--pipeline", action="store_true", help="pipeline_read and pipeline_write")
    args = parser.parse_args()
    if args.state == "nvme" and not args.nvme:
        parser.error("--state nvme needs --nvme DIR")
    return args


def config_of(args):
    """The DeepSpeed file of this run: the same optimizer and clipping as strata_step.json."""
    offload = {"device": args.state, "pin_memory": False}
    if args.state == "nvme":
        # Four buffers hold one sub-group (weight, two moments, gradient); pipelining has three sub-groups in flight.
        offload.update(nvme_path=args.nvme, buffer_count=12 if args.pipeline else 4, pipeline_read=args.pipeline,
                       pipeline_write=args.pipeline)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.dtype == "bf16"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1},
        },
        "zero_optimization": {
            "stage": args.stage,
            "offload_optimizer": offload,
            "sub_group_size": args.sub_group,
        },
        "aio": {
            "block_size": 1048576,
            "queue_depth": 32,
            "intra_op_parallelism": 2,
            "single_submit": False,
            "overlap_events": True,
        },
    }


def read_windows(path, seq_len, count):
    """The first `count` windows of seq_len tokens."""
    with open(path, "rb") as file:
        magic, version, total = struct.unpack("<3i", file.read(12))
        if magic != TOKENS_MAGIC or version != 1:
            sys.exit(f"deepspeed_step: {path}: not a token file of version 1")
        if total < seq_len * count:
            sys.exit(f"deepspeed_step: {path}: {total} tokens, {seq_len * count} are needed")
        file.seek(256 * 4)
        raw = file.read(seq_len * count * 2)
    tokens = struct.unpack(f"<{seq_len * count}H", raw)
    return [tokens[i * seq_len:(i + 1) * seq_len] for i in range(count)]


def peak_rss_bytes():
    """Of this process; compilers run by the JIT build are children and do not count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build_engine(args):
    """The model with random weights and the engine around it."""
    import deepspeed
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29571")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    shape = GPT2Config(n_layer=args.layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = GPT2LMHeadModel(shape)
    model.train()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config_of(args))
    versions = {"torch": torch.__version__, "deepspeed": deepspeed.__version__}
    return engine, versions


def timed_steps(engine, args):
    """Runs all steps; returns the timed ones and their losses."""
    import torch

    rows = []
    for step, window in enumerate(read_windows(args.data, args.seq_len, args.warmup + args.steps)):
        tokens = torch.tensor([window], dtype=torch.long)
        t0 = time.perf_counter()
        loss = engine(input_ids=tokens, labels=tokens).loss
        t1 = time.perf_counter()
        engine.backward(loss)
        t2 = time.perf_counter()
        engine.step()
        t3 = time.perf_counter()
        row = {"step": t3 - t0, "forward": t1 - t0, "backward": t2 - t1, "update": t3 - t2, "loss": float(loss.detach())}
        print(f"deepspeed {args.dtype} step {step + 1}: " + " ".join(f"{k} {v:.3f}" for k, v in row.items()),
              file=sys.stderr, flush=True)
        if step >= args.warmup:
            rows.append(row)
    return rows


def main():
    args = parse_args()
    import deepspeed  # noqa: F401  what importing takes is part of the peak, and reported apart
    import torch  # noqa: F401
    import transformers  # noqa: F401

    imported = peak_rss_bytes()
    engine, versions = build_engine(args)
    created = peak_rss_bytes()
    rows = timed_steps(engine, args)
    result = {
        "who": "deepspeed", "dtype": args.dtype, "state": args.state, "seq_len": args.seq_len, "threads": args.threads,
        "sub_group": args.sub_group, "pipeline": args.pipeline, "versions": versions, "steps": rows,
        "peak_rss_bytes": peak_rss_bytes(), "rss_imported_bytes": imported, "rss_created_bytes": created,
    }
    with open(args.out, "w", encoding="ascii") as file:
        json.dump(result, file)
    engine.destroy()


if __name__ == "__main__":
    main()
