#!/usr/bin/env python3
"""Make tests/golden/lora: LoRA on the tiny models of tests/golden, and what PEFT computes with it.

Never run by tests or CI; its output is committed.  Needs torch, transformers, peft and xxhash:

    python3 tools/make_golden_lora.py [NAME...]

Files of each: adapter_config.json and adapter_model.safetensors (PEFT's own; A and B are random numbers), golden.json: loss and samples of
the gradients of A and B in fp64 (first micro-batch), and losses of 20 AdamW steps with the model in bf16, without autocast (adapters
are fp32); of those with dropout, whose masks are strata's own in place of PEFT's module, also in fp32.
"""
import argparse
import json
import os
import shutil

import numpy
import peft
import torch
import transformers
import xxhash
from make_golden import CLIP, DECAY, BETAS, EPS, LR, MICRO_BATCH, ACCUMULATION, STEPS, SEED, micro_batch, write_json
from make_golden_families import SAMPLES, build, mean_loss

ALL = dict(target_modules="all-linear")
MODELS = {
    "gpt2_tiny": dict(target_modules=["c_attn", "c_fc"]),
    "gpt2_exact": dict(ALL),
    "llama_linear": dict(target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True),
    "mistral_window": dict(ALL, rank_pattern={"k_proj": 2, "mlp.up_proj": 8}, alpha_pattern={"o_proj": 3}),
    "qwen2_layers": dict(target_modules=["q_proj", "k_proj", "gate_proj"], layers_to_transform=[1]),
    "qwen3_bias": dict(ALL),
    "smollm3_yarn": dict(target_modules=r".*(v_proj|1\.mlp\.(gate|down)_proj)"),
    "phi3_long": dict(ALL),
    "gemma2_caps": dict(ALL, exclude_modules=["o_proj"]),
    "gemma3_local": dict(ALL),
    "olmo2": dict(ALL),
}
DROPOUT = {  # the same adapters, with lora_dropout
    "gpt2_dropout": ("gpt2_tiny", 0.25),
    "mistral_dropout": ("mistral_window", 0.05),
    "gemma2_dropout": ("gemma2_caps", 0.5),
}


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011) of many counters, uint64 arrays with words of 32 bits: [4] of such arrays."""
    low, key = numpy.uint64(0xFFFFFFFF), [int(key) & 0xFFFFFFFF, int(key) >> 32]
    c = [numpy.asarray(word, numpy.uint64) for word in counter]
    for _ in range(10):
        first, second = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [(second >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(key[0]), second & low,
             (first >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class Dropout(torch.nn.Module):
    """In place of PEFT's module: the masks of a run with --seed 0, x being that of the sequences from `sequence` on."""

    sequence = 0  # of all modules

    def __init__(self, path, p):
        super().__init__()
        stream = ~xxhash.xxh3_64_intdigest((path + ".lora_A.weight").encode()) & (2**64 - 1)
        words = philox([0, 0, stream & 0xFFFFFFFF, stream >> 32], 0)
        self.key, self.p = int(words[0]) | int(words[1]) << 32, p

    def forward(self, x):
        sequence, position, block = numpy.meshgrid(numpy.arange(self.sequence, self.sequence + x.shape[0]), numpy.arange(x.shape[1]),
                                                   numpy.arange((x.shape[2] + 3) // 4), indexing="ij")
        words = numpy.stack(philox([block, position, sequence & 0xFFFFFFFF, sequence >> 32], self.key), axis=-1)
        kept = words.reshape(x.shape[0], x.shape[1], -1)[:, :, :x.shape[2]] >= int(self.p * 2**32)
        return x * torch.from_numpy(kept).to(x.dtype) * (1 / (1 - self.p))


def put_masks(model, p):
    for path, module in model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.lora_dropout["default"] = Dropout(path, p)


def base_path(name):
    name = DROPOUT.get(name, (name,))[0]
    golden = os.path.join(os.path.dirname(__file__), "..", "tests", "golden")
    path = os.path.join(golden, name)
    return path if os.path.isdir(path) else os.path.join(golden, "families", name)


def adapters(model):
    return [(n.replace(".default", ""), p) for n, p in model.named_parameters() if "lora_" in n]


def adapted(name, dtype):
    torch.manual_seed(SEED)
    like, dropout = DROPOUT.get(name, (name, 0.0))
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, task_type="CAUSAL_LM", **MODELS[like])
    model = peft.get_peft_model(build(base_path(name), dtype), config).eval()
    if dropout > 0:
        put_masks(model, dropout)
    rng = numpy.random.Generator(numpy.random.Philox(SEED))
    with torch.no_grad():
        for _, p in adapters(model):
            p.copy_(torch.from_numpy((0.1 * rng.standard_normal(tuple(p.shape))).astype(numpy.float32)))
    return model


def first_gradients(name, tokens):
    model = adapted(name, torch.float64).double()
    Dropout.sequence = 0
    loss = mean_loss(model, *micro_batch(tokens, 0))
    loss.backward()
    gradients = {}
    for path, p in adapters(model):
        flat = p.grad.flatten()
        stride = max(1, flat.numel() // SAMPLES)
        gradients[path] = {"norm": float(flat.norm()), "stride": stride, "samples": [float(v) for v in flat[::stride][:SAMPLES]]}
    return {"loss": float(loss), "gradients": gradients}


def train(name, tokens, dtype):
    model = adapted(name, dtype)
    parameters = [p for _, p in adapters(model)]
    assert all(p.dtype == torch.float32 for p in parameters)
    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    losses, norms, position = [], [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATION):
            batch, targets = micro_batch(tokens, position)
            Dropout.sequence = position
            logits = model(input_ids=batch, use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
            position += MICRO_BATCH
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        losses.append(total)
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def make(name, path):
    tokens = numpy.fromfile(base_path(name) + "/tokens.bin", dtype="<u2", offset=1024)
    shutil.rmtree(path, ignore_errors=True)
    model = adapted(name, torch.float32)
    model.peft_config["default"].base_model_name_or_path = os.path.basename(base_path(name))
    model.save_pretrained(path, save_embedding_layers=False)  # it would look for the base on the net
    os.remove(path + "/README.md")
    series = {"bf16": torch.bfloat16, "fp32": torch.float32} if name in DROPOUT else {"bf16": torch.bfloat16}
    write_json(path + "/golden.json", {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
        "parameters": sum(p.numel() for _, p in adapters(model)),
        "first_micro_batch": first_gradients(name, tokens),
        **{key: train(name, tokens, dtype) for key, dtype in series.items()},
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "lora"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*MODELS, *DROPOUT]) + "; default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in args.names or [*MODELS, *DROPOUT]:
        make(name, os.path.join(args.out, name))
        print(name)


if __name__ == "__main__":
    main()
