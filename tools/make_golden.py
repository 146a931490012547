#!/usr/bin/env python3
"""Make tests/golden/gpt2_tiny: a tiny GPT-2, its data, and what PyTorch says training on it gives.

Never run by tests or CI; its output is committed.  Needs torch and numpy (Debian: python3-torch):

    python3 tools/make_golden.py [--out tests/golden/gpt2_tiny]

Files: config.json and model.safetensors (initial fp32 weights), tokens.bin (80 windows, walked in order: one
optimizer step of 4 windows each time), tokens_batch.bin (4 windows: the same batch every step, so that the order in
which windows are walked changes rounding only), config_ds.json (DeepSpeed), golden.json (losses, gradient norms, and
samples of the gradients of the first micro-batch).
"""
import argparse
import json
import math
import os
import platform
import struct

import numpy
import torch

BLOCKS, HIDDEN, HEADS, VOCAB, CONTEXT = 2, 64, 2, 96, 32
MICRO_BATCH, ACCUMULATION, STEPS = 2, 2, 20
LR, BETAS, EPS, DECAY, CLIP, NORM_EPS = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0, 1e-5
SEED = 20240520
SAMPLES = 16  # values kept of each gradient


def tensor_shapes():
    """Name and shape of every tensor, in parameter order."""
    shapes = [("wte.weight", (VOCAB, HIDDEN)), ("wpe.weight", (CONTEXT, HIDDEN))]
    for i in range(BLOCKS):
        h = f"h.{i}."
        shapes += [
            (h + "attn.c_attn.weight", (HIDDEN, 3 * HIDDEN)),
            (h + "attn.c_proj.weight", (HIDDEN, HIDDEN)),
            (h + "mlp.c_fc.weight", (HIDDEN, 4 * HIDDEN)),
            (h + "mlp.c_proj.weight", (4 * HIDDEN, HIDDEN)),
            (h + "ln_1.weight", (HIDDEN,)),
            (h + "ln_1.bias", (HIDDEN,)),
            (h + "attn.c_attn.bias", (3 * HIDDEN,)),
            (h + "attn.c_proj.bias", (HIDDEN,)),
            (h + "ln_2.weight", (HIDDEN,)),
            (h + "ln_2.bias", (HIDDEN,)),
            (h + "mlp.c_fc.bias", (4 * HIDDEN,)),
            (h + "mlp.c_proj.bias", (HIDDEN,)),
        ]
    shapes += [("ln_f.weight", (HIDDEN,)), ("ln_f.bias", (HIDDEN,))]
    return [("transformer." + name, shape) for name, shape in shapes]


def initial_weights():
    """Larger than GPT-2's own, with biases and norms off their rest values, so that every path matters."""
    rng = numpy.random.Generator(numpy.random.Philox(SEED))
    weights = {}
    for name, shape in tensor_shapes():
        std = 0.1 if len(shape) == 2 else 0.05
        mean = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
        weights[name] = (mean + std * rng.standard_normal(shape)).astype(numpy.float32)
    return weights


def make_tokens(count, rng):
    """A first-order chain: something can be learned from it."""
    successors = rng.integers(0, VOCAB, (VOCAB, 4))
    tokens = [int(rng.integers(0, VOCAB))]
    while len(tokens) < count:
        tokens.append(int(successors[tokens[-1], rng.integers(0, 4)]))
    return numpy.array(tokens, dtype=numpy.uint16)


def norm(x, w, name):
    return torch.nn.functional.layer_norm(x, (HIDDEN,), w[name + ".weight"], w[name + ".bias"], NORM_EPS)


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(x, w, name):
    batch, seq, _ = x.shape
    qkv = x @ w[name + ".c_attn.weight"] + w[name + ".c_attn.bias"]
    q, k, v = (t.view(batch, seq, HEADS, HIDDEN // HEADS).transpose(1, 2) for t in qkv.split(HIDDEN, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(HIDDEN // HEADS)
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
    out = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, seq, HIDDEN)
    return out @ w[name + ".c_proj.weight"] + w[name + ".c_proj.bias"]


def mlp(x, w, name):
    return gelu_new(x @ w[name + ".c_fc.weight"] + w[name + ".c_fc.bias"]) @ w[name + ".c_proj.weight"] + w[name + ".c_proj.bias"]


def loss_of(w, tokens, targets):
    """Mean cross-entropy of one micro-batch."""
    p = "transformer."
    x = w[p + "wte.weight"][tokens] + w[p + "wpe.weight"][: tokens.shape[1]]
    for i in range(BLOCKS):
        h = f"{p}h.{i}."
        x = x + attention(norm(x, w, h + "ln_1"), w, h + "attn")
        x = x + mlp(norm(x, w, h + "ln_2"), w, h + "mlp")
    logits = norm(x, w, p + "ln_f") @ w[p + "wte.weight"].t()
    return torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


def micro_batch(tokens, position):
    """MICRO_BATCH windows from window `position` on, wrapping around."""
    windows = (len(tokens) - 1) // CONTEXT
    rows = []
    for i in range(MICRO_BATCH):
        first = (position + i) % windows * CONTEXT
        rows.append(tokens[first : first + CONTEXT + 1].astype(numpy.int64))
    both = torch.from_numpy(numpy.stack(rows))
    return both[:, :-1], both[:, 1:]


def parameters(weights, dtype):
    return {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in weights.items()}


def train(weights, tokens, dtype):
    w = parameters(weights, dtype)
    groups = [
        {"params": [t for t in w.values() if t.dim() == 2], "weight_decay": DECAY},
        {"params": [t for t in w.values() if t.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms, position = [], [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATION):
            loss = loss_of(w, *micro_batch(tokens, position))
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
            position += MICRO_BATCH
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        losses.append(total)
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def first_gradients(weights, tokens):
    """Loss and gradient samples of the first micro-batch alone, in fp64."""
    w = parameters(weights, torch.float64)
    loss = loss_of(w, *micro_batch(tokens, 0))
    loss.backward()
    gradients = {}
    for name, t in w.items():
        flat = t.grad.flatten()
        step = max(1, flat.numel() // SAMPLES)
        gradients[name] = {
            "norm": float(flat.norm()),
            "stride": step,
            "samples": [float(v) for v in flat[::step][:SAMPLES]],
        }
    return {"loss": float(loss), "gradients": gradients}


def write_tokens(path, tokens):
    header = numpy.zeros(256, dtype="<i4")
    header[:4] = (20240520, 1, len(tokens), VOCAB)
    with open(path, "wb") as f:
        f.write(header.tobytes())
        f.write(tokens.astype("<u2").tobytes())


def write_safetensors(path, weights):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, value in weights.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [end, end + value.nbytes]}
        end += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            f.write(value.astype("<f4").tobytes())


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


MODEL_CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "vocab_size": VOCAB,
    "n_positions": CONTEXT,
    "n_ctx": CONTEXT,
    "n_embd": HIDDEN,
    "n_layer": BLOCKS,
    "n_head": HEADS,
    "n_inner": None,
    "layer_norm_epsilon": NORM_EPS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}

DEEPSPEED_CONFIG = {
    "train_batch_size": MICRO_BATCH * ACCUMULATION,
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": CLIP,
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "gpt2_tiny"))
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    torch.set_num_threads(1)

    weights = initial_weights()
    rng = numpy.random.Generator(numpy.random.Philox(SEED + 1))
    tokens = make_tokens(STEPS * ACCUMULATION * MICRO_BATCH * CONTEXT + 1, rng)
    batch = tokens[: ACCUMULATION * MICRO_BATCH * CONTEXT + 1]
    write_tokens(os.path.join(out, "tokens.bin"), tokens)
    write_tokens(os.path.join(out, "tokens_batch.bin"), batch)
    write_safetensors(os.path.join(out, "model.safetensors"), weights)
    write_json(os.path.join(out, "config.json"), MODEL_CONFIG)
    write_json(os.path.join(out, "config_ds.json"), DEEPSPEED_CONFIG)
    write_json(
        os.path.join(out, "golden.json"),
        {
            "versions": {
                "torch": torch.__version__,
                "numpy": numpy.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "parameters": int(sum(v.size for v in weights.values())),
            "seq_len": CONTEXT,
            "first_micro_batch": first_gradients(weights, tokens),
            "in_order": train(weights, tokens, torch.float32),
            "in_order_f64": train(weights, tokens, torch.float64),
            "one_batch": train(weights, batch, torch.float32),
            "one_batch_f64": train(weights, batch, torch.float64),
        },
    )


if __name__ == "__main__":
    main()
