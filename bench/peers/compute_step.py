#!/usr/bin/env python3
"""compute_step.py - a step of a model of transformers' in one loop: computed by PyTorch, and by strata's own decoder, in turns.

    PYTHONPATH=python STRATA_LIBRARY=build/release/libstrata.so python bench/peers/compute_step.py --model llama --dtype fp32

Both are engines of strata.torch with the same configuration and update; only `compute` differs.  Medians of --steps steps after
one that is left out, in seconds, and the last loss of each.
"""

import argparse
import itertools
import statistics
import time

import torch
import transformers

from strata.torch import Engine

MODELS = {
    "llama": lambda seq: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=8192,
            hidden_size=320,
            intermediate_size=896,
            num_hidden_layers=8,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=seq,
        )
    ),
    "gpt2": lambda seq: transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = {
        "train_batch_size": args.sequences,
        "train_micro_batch_size_per_gpu": args.sequences,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
        "strata": {"threads": args.threads},
    }
    engines = {}
    for compute in ("torch", "strata"):
        torch.manual_seed(1)
        engines[compute] = Engine(MODELS[args.model](args.seq_len), config, compute=compute, seq_len=args.seq_len)
    seconds = {compute: [] for compute in engines}
    losses = {}
    vocab = engines["torch"].module.config.vocab_size
    for step in range(args.steps + 1):
        made = torch.Generator().manual_seed(step)
        ids = torch.randint(0, vocab, (args.sequences, args.seq_len), generator=made)
        for compute, engine in engines.items():
            times = [time.perf_counter()]
            loss = engine(input_ids=ids, labels=ids).loss
            times.append(time.perf_counter())
            engine.backward(loss)
            times.append(time.perf_counter())
            engine.step()
            times.append(time.perf_counter())
            losses[compute] = loss.item()
            if step > 0:
                seconds[compute].append([*(b - a for a, b in itertools.pairwise(times)), times[-1] - times[0]])
    parameters = sum(p.numel() for p in engines["torch"].module.parameters())
    print(f"{args.model}, {parameters / 1e6:.1f} M parameters, {args.dtype}, {args.sequences} x {args.seq_len} tokens")
    print("compute  forward  backward  step()   all      loss")
    for compute, rows in seconds.items():
        medians = [statistics.median(column) for column in zip(*rows)]
        print(f"{compute:7}  " + "  ".join(f"{value:7.3f}" for value in medians) + f"  {losses[compute]:.6f}")
    for engine in engines.values():
        engine.destroy()


if __name__ == "__main__":
    main()
