#!/usr/bin/env python3
"""loop_step.py - times steps of a plain PyTorch loop over GPT-2 124M in fp32: forward, backward, clipping and an optimizer.

Writes one JSON object: seconds of each timed step for forward, backward and update (clipping, the optimizer's step, zeroing),
of its optimizer alone, and the peak resident memory of the process.
"""

import argparse
import json
import time

from deepspeed_step import peak_rss_bytes, read_windows

HYPER = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", required=True, help="token file, as written by strata tokens")
    parser.add_argument("--out", required=True, help="where the JSON object goes")
    parser.add_argument("--optimizer", choices=["none", "torch", "torch_fused", "strata", "engine"], required=True)
    parser.add_argument("--nvme", help="directory for the state of strata; without it the state is in memory")
    parser.add_argument("--layers", type=int, default=12, help="fewer for a quick trial")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def optimizer_of(args, parameters):
    import torch

    if args.optimizer == "none":
        return None
    if args.optimizer == "strata":
        from strata import optim

        place = {"device": "nvme", "nvme_path": args.nvme} if args.nvme else {}
        return optim.AdamW(parameters, **HYPER, threads=args.threads, **place)
    return torch.optim.AdamW(parameters, **HYPER, fused=args.optimizer == "torch_fused")


def engine_of(args, model):
    from strata.torch import Engine

    place = {"device": "nvme", "nvme_path": args.nvme} if args.nvme else {"device": "cpu"}
    config = {"train_batch_size": 1, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": HYPER},
              "zero_optimization": {"stage": 2, "offload_optimizer": place}, "strata": {"threads": args.threads}}
    return Engine(model, config)


def main():
    args = parse_args()
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    imported = peak_rss_bytes()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=args.layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
    model.train()
    engine = engine_of(args, model) if args.optimizer == "engine" else None
    optimizer = None if engine is not None else optimizer_of(args, list(model.parameters()))
    rows = []
    for step, window in enumerate(read_windows(args.data, args.seq_len, args.warmup + args.steps)):
        tokens = torch.tensor([window], dtype=torch.long)
        times = [time.perf_counter()]
        loss = model(input_ids=tokens, labels=tokens).loss
        times.append(time.perf_counter())
        loss.backward() if engine is None else engine.backward(loss)
        times.append(time.perf_counter())
        if engine is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        times.append(time.perf_counter())
        if engine is not None:
            engine.step()  # clips, too
        elif optimizer is not None:
            optimizer.step()
        times.append(time.perf_counter())
        model.zero_grad()
        times.append(time.perf_counter())
        begin, forward, backward, clipped, stepped, end = times
        row = {"step": end - begin, "forward": forward - begin, "backward": backward - forward, "update": end - backward,
               "optimizer": stepped - clipped, "loss": float(loss.detach())}
        if step >= args.warmup:
            rows.append(row)
    result = {"steps": rows, "peak_rss_bytes": peak_rss_bytes(), "rss_imported_bytes": imported,
              "parameters": sum(p.numel() for p in model.parameters()), "versions": {"torch": torch.__version__}}
    with open(args.out, "w", encoding="ascii") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
