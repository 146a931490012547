#!/usr/bin/env python3
"""Make tests/golden: tiny models, their data, and what PyTorch says training on them gives.

Never run by tests or CI; its output is committed.  Needs torch and numpy (Debian: python3-torch):

    python3 tools/make_golden.py [--out tests/golden] [NAME...]

gpt2_tiny: a GPT-2.  llama_tiny_tied: grouped heads, q, k and v biases (Qwen2's form).  llama_tiny_untied: grouped heads,
a head of its own, llama3 scaling of the rotary frequencies.

Files of each: config.json and model.safetensors (initial fp32 weights), tokens.bin (80 windows, walked in order: one
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

BLOCKS, HIDDEN, VOCAB, CONTEXT = 2, 64, 96, 32
MICRO_BATCH, ACCUMULATION, STEPS = 2, 2, 20
LR, BETAS, EPS, DECAY, CLIP, NORM_EPS = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0, 1e-5
SEED = 20240520
SAMPLES = 16  # values kept of each gradient


def zero_mean(name):
    return not (name.endswith("weight") and ("norm" in name or ".ln_" in name))


def initial_weights(model):
    """Larger than a model's own, with biases and norms off their rest values, so that every path matters."""
    rng = numpy.random.Generator(numpy.random.Philox(SEED))
    weights = {}
    for name, shape in model.tensor_shapes():
        std = 0.1 if len(shape) == 2 else 0.05
        mean = 0.0 if zero_mean(name) else 1.0
        weights[name] = (mean + std * rng.standard_normal(shape)).astype(numpy.float32)
    return weights


def make_tokens(count, rng):
    """A first-order chain: something can be learned from it."""
    successors = rng.integers(0, VOCAB, (VOCAB, 4))
    tokens = [int(rng.integers(0, VOCAB))]
    while len(tokens) < count:
        tokens.append(int(successors[tokens[-1], rng.integers(0, 4)]))
    return numpy.array(tokens, dtype=numpy.uint16)


def attend(q, k, v):
    """Causal attention; q, k, v: [batch, heads, seq, head_dim]."""
    batch, heads, seq, head_dim = q.shape
    scores = q @ k.transpose(2, 3) / math.sqrt(head_dim)
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, seq, heads * head_dim)


def mean_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


class Gpt2:
    HEADS = 2

    config = {
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

    def tensor_shapes(self):
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

    @staticmethod
    def norm(x, w, name):
        return torch.nn.functional.layer_norm(x, (HIDDEN,), w[name + ".weight"], w[name + ".bias"], NORM_EPS)

    @staticmethod
    def gelu_new(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))

    def attention(self, x, w, name):
        batch, seq, _ = x.shape
        qkv = x @ w[name + ".c_attn.weight"] + w[name + ".c_attn.bias"]
        q, k, v = (t.view(batch, seq, self.HEADS, HIDDEN // self.HEADS).transpose(1, 2) for t in qkv.split(HIDDEN, dim=2))
        return attend(q, k, v) @ w[name + ".c_proj.weight"] + w[name + ".c_proj.bias"]

    def mlp(self, x, w, name):
        inner = self.gelu_new(x @ w[name + ".c_fc.weight"] + w[name + ".c_fc.bias"])
        return inner @ w[name + ".c_proj.weight"] + w[name + ".c_proj.bias"]

    def loss(self, w, tokens, targets):
        p = "transformer."
        x = w[p + "wte.weight"][tokens] + w[p + "wpe.weight"][: tokens.shape[1]]
        for i in range(BLOCKS):
            h = f"{p}h.{i}."
            x = x + self.attention(self.norm(x, w, h + "ln_1"), w, h + "attn")
            x = x + self.mlp(self.norm(x, w, h + "ln_2"), w, h + "mlp")
        return mean_loss(self.norm(x, w, p + "ln_f") @ w[p + "wte.weight"].t(), targets)


class Llama:
    HEADS, KV_HEADS, HEAD_DIM, FFN = 4, 2, 16, 96

    def __init__(self, config, biases):
        self.biases = biases
        self.config = {
            **config,
            "hidden_act": "silu",
            "vocab_size": VOCAB,
            "max_position_embeddings": CONTEXT,
            "hidden_size": HIDDEN,
            "intermediate_size": self.FFN,
            "num_hidden_layers": BLOCKS,
            "num_attention_heads": self.HEADS,
            "num_key_value_heads": self.KV_HEADS,
            "rms_norm_eps": NORM_EPS,
            "attention_dropout": 0.0,
            "torch_dtype": "float32",
        }

    def tensor_shapes(self):
        """Name and shape of every tensor, in parameter order."""
        q, kv = self.HEADS * self.HEAD_DIM, self.KV_HEADS * self.HEAD_DIM
        shapes = [("model.embed_tokens.weight", (VOCAB, HIDDEN))]
        for i in range(BLOCKS):
            layer = f"model.layers.{i}."
            shapes += [
                (layer + "self_attn.q_proj.weight", (q, HIDDEN)),
                (layer + "self_attn.k_proj.weight", (kv, HIDDEN)),
                (layer + "self_attn.v_proj.weight", (kv, HIDDEN)),
                (layer + "self_attn.o_proj.weight", (HIDDEN, q)),
                (layer + "mlp.gate_proj.weight", (self.FFN, HIDDEN)),
                (layer + "mlp.up_proj.weight", (self.FFN, HIDDEN)),
                (layer + "mlp.down_proj.weight", (HIDDEN, self.FFN)),
                (layer + "input_layernorm.weight", (HIDDEN,)),
            ]
            if self.biases:
                shapes += [
                    (layer + "self_attn.q_proj.bias", (q,)),
                    (layer + "self_attn.k_proj.bias", (kv,)),
                    (layer + "self_attn.v_proj.bias", (kv,)),
                ]
            shapes += [(layer + "post_attention_layernorm.weight", (HIDDEN,))]
        shapes += [("model.norm.weight", (HIDDEN,))]
        if not self.config["tie_word_embeddings"]:
            shapes += [("lm_head.weight", (VOCAB, HIDDEN))]
        return shapes

    @staticmethod
    def norm(x, w, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * w[name + ".weight"]

    def frequencies(self):
        """Radians per position of each pair, in double."""
        pairs = torch.arange(0, self.HEAD_DIM, 2, dtype=torch.float64) / self.HEAD_DIM
        frequency = self.config["rope_theta"] ** -pairs
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return frequency
        low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
        context = scaling["original_max_position_embeddings"]
        wavelength = 2.0 * math.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        mixed = (1.0 - smooth) * frequency / factor + smooth * frequency
        slow = torch.where(wavelength > context / low, frequency / factor, mixed)
        return torch.where(wavelength < context / high, frequency, slow)

    def rotate(self, x):
        """Pairs are (i, i + head_dim / 2)."""
        angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * self.frequencies()
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def project(self, x, w, name, heads):
        y = x @ w[name + ".weight"].t()
        if self.biases:
            y = y + w[name + ".bias"]
        return y.view(x.shape[0], x.shape[1], heads, self.HEAD_DIM).transpose(1, 2)

    def attention(self, x, w, name):
        q = self.rotate(self.project(x, w, name + ".q_proj", self.HEADS))
        k = self.rotate(self.project(x, w, name + ".k_proj", self.KV_HEADS))
        v = self.project(x, w, name + ".v_proj", self.KV_HEADS)
        repeat = self.HEADS // self.KV_HEADS
        out = attend(q, k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1))
        return out @ w[name + ".o_proj.weight"].t()

    @staticmethod
    def mlp(x, w, name):
        gate, up = x @ w[name + ".gate_proj.weight"].t(), x @ w[name + ".up_proj.weight"].t()
        return (torch.nn.functional.silu(gate) * up) @ w[name + ".down_proj.weight"].t()

    def loss(self, w, tokens, targets):
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(BLOCKS):
            layer = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, w, layer + "input_layernorm"), w, layer + "self_attn")
            x = x + self.mlp(self.norm(x, w, layer + "post_attention_layernorm"), w, layer + "mlp")
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        return mean_loss(self.norm(x, w, "model.norm") @ w[head].t(), targets)


MODELS = {
    "gpt2_tiny": Gpt2(),
    "llama_tiny_tied": Llama(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
        },
        biases=True,
    ),
    "llama_tiny_untied": Llama(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
        biases=False,
    ),
}


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


def train(model, weights, tokens, dtype):
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
            loss = model.loss(w, *micro_batch(tokens, position))
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
            position += MICRO_BATCH
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        losses.append(total)
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def first_gradients(model, weights, tokens):
    """Loss and gradient samples of the first micro-batch alone, in fp64."""
    w = parameters(weights, torch.float64)
    loss = model.loss(w, *micro_batch(tokens, 0))
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


DEEPSPEED_CONFIG = {
    "train_batch_size": MICRO_BATCH * ACCUMULATION,
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": CLIP,
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
}


def make(name, out):
    model = MODELS[name]
    weights = initial_weights(model)
    rng = numpy.random.Generator(numpy.random.Philox(SEED + 1))
    tokens = make_tokens(STEPS * ACCUMULATION * MICRO_BATCH * CONTEXT + 1, rng)
    batch = tokens[: ACCUMULATION * MICRO_BATCH * CONTEXT + 1]
    os.makedirs(out, exist_ok=True)
    write_tokens(os.path.join(out, "tokens.bin"), tokens)
    write_tokens(os.path.join(out, "tokens_batch.bin"), batch)
    write_safetensors(os.path.join(out, "model.safetensors"), weights)
    write_json(os.path.join(out, "config.json"), model.config)
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
            "first_micro_batch": first_gradients(model, weights, tokens),
            "in_order": train(model, weights, tokens, torch.float32),
            "in_order_f64": train(model, weights, tokens, torch.float64),
            "one_batch": train(model, weights, batch, torch.float32),
            "one_batch_f64": train(model, weights, batch, torch.float64),
        },
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "tests", "golden"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS) + "; default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names or MODELS:
        make(name, os.path.join(args.out, name))


if __name__ == "__main__":
    main()
