#!/usr/bin/env python3
"""deepspeed_ranks.py --stage N [--steps N] - seconds of a step of DeepSpeed's ranks on the CPU, GPT-2 124M in bf16.

Started by torchrun, one thread to a rank:

    OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 bench/peers/deepspeed_ranks.py --stage 3

Two micro-batches of one sequence of 256 tokens to each rank, random weights and tokens, torch's AdamW (DeepSpeed's own wants a
compiler), gloo. The same by strata is in docs/ranks.md. Needs torch, transformers and deepspeed.
"""
import argparse
import os
import statistics
import time

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

ACCUMULATION = 2
SEQUENCE = 256


def make_engine(stage):
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).to(torch.bfloat16)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATION,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "communication_data_type": "fp32",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def step_seconds(engine, tokens):
    begin = time.monotonic()
    for _ in range(ACCUMULATION):
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, choices=[0, 1, 2, 3], required=True, help="ZeRO's")
    parser.add_argument("--steps", type=int, default=8, help="steps, of which the first does not count")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # launchers append it
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    engine = make_engine(args.stage)
    tokens = torch.randint(0, 50257, (1, SEQUENCE))
    seconds = [step_seconds(engine, tokens) for _ in range(args.steps)][1:]
    if os.environ["RANK"] == "0":
        print(f"deepspeed {deepspeed.__version__}, stage {args.stage}: median {statistics.median(seconds):.2f} s,",
              f"shortest {min(seconds):.2f} s")


if __name__ == "__main__":
    main()
