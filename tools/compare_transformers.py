#!/usr/bin/env python3
"""Compare strata with transformers on tiny random models: tools/compare_transformers.py STRATA [COUNT]

Each of COUNT models (the families by turns) gets unknown keys, end tokens as number, list, null or not at all, and in
half the cases a generation_config.json.  Three things are compared:
  - the loss of `strata eval` and of transformers' eager model, in fp32;
  - greedy tokens of `strata generate` and of generate(), in fp32;
  - config.json, generation_config.json and weights after a step with a learning rate of 0 and --out, in fp32.
A difference in tokens whose first two logits are within 1e-4 is counted apart.  Of each family's smallest preset, a directory that
strata writes is loaded, too.
Prints what differs; exit code 1 then.  Needs torch and transformers."""
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig,
                          Olmo2Config, Phi3Config, Qwen2Config, Qwen3Config, SmolLM3Config)

TOKENS, SEQ = 60, 48
LLAMA = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3)


SPECIAL = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
PRESETS = ["nano", "nano-llama"]


def configs(rnd):
    return [GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=2, initializer_range=0.4),
            LlamaConfig(**LLAMA),
            Qwen2Config(**LLAMA, use_sliding_window=True, max_window_layers=rnd.choice([0, 1, 2, 28]), sliding_window=100),
            MistralConfig(**LLAMA, sliding_window=rnd.choice([None, 9, 100, 4096])),
            Qwen3Config(**LLAMA, head_dim=rnd.choice([8, 32]), attention_bias=rnd.random() < 0.5,
                        use_sliding_window=True, sliding_window=11, max_window_layers=rnd.choice([0, 1, 2])),
            SmolLM3Config(**LLAMA, no_rope_layers=rnd.choice([None, [1, 0], [0, 1]]), tie_word_embeddings=rnd.random() < 0.5,
                          mlp_bias=rnd.random() < 0.5, **SPECIAL),
            Phi3Config(**LLAMA, sliding_window=rnd.choice([None, 10]), **SPECIAL),
            Gemma2Config(**LLAMA, head_dim=rnd.choice([8, 32]), sliding_window=rnd.choice([7, 100]),
                         query_pre_attn_scalar=rnd.choice([16, 50]), attn_logit_softcapping=rnd.choice([None, 5.0]),
                         final_logit_softcapping=rnd.choice([None, 10.0]), **SPECIAL),
            Gemma3TextConfig(**LLAMA, head_dim=rnd.choice([8, 32]), sliding_window=7, sliding_window_pattern=rnd.choice([1, 2, 3]),
                             query_pre_attn_scalar=20, **SPECIAL),
            Olmo2Config(**LLAMA, attention_bias=rnd.random() < 0.5, **SPECIAL)]


def ends(rnd):
    return rnd.choice([None, rnd.randrange(256), [rnd.randrange(256) for _ in range(rnd.randrange(1, 9))]])


def edit(path, change):
    values = json.load(open(path)) if os.path.exists(path) else {}
    change(values)
    json.dump(values, open(path, "w"), indent=2)


def make_model(path, rnd, index):
    """A directory with keys as others write them."""
    torch.manual_seed(index)
    AutoModelForCausalLM.from_config(configs(rnd)[index % len(configs(rnd))]).save_pretrained(path)

    def change_config(values):
        values["my_key"] = {"b": [1, 2.5, None]}
        for key in ("bos_token_id", "eos_token_id"):
            values.pop(key, None)
        values["pad_token_id"] = None  # a class's own may lie outside the vocabulary
        if rnd.random() < 0.7:
            values["eos_token_id"] = ends(rnd)

    def change_generation(values):
        values.clear()
        if rnd.random() < 0.8:
            values["eos_token_id"] = ends(rnd)
        if rnd.random() < 0.5:
            values["repetition_penalty"] = rnd.choice([0.8, 1.0, 1.1, 1.5, 2.0])

    edit(path + "/config.json", change_config)
    if rnd.random() < 0.5:
        edit(path + "/generation_config.json", change_generation)
    elif os.path.exists(path + "/generation_config.json"):
        os.remove(path + "/generation_config.json")


def run(strata, *words):
    quiet = ["--quiet"] if words[0] != "eval" else []
    return subprocess.run([strata, *words, "--set", "bf16.enabled=false", *quiet], check=True, capture_output=True, text=True).stdout


def compare_tokens(strata, path, rnd):
    prompt = [rnd.randrange(256) for _ in range(rnd.randrange(1, 9))]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([prompt])
    want = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)[0, len(prompt):].tolist()
    # The byte vocabulary is written as bytes; --json has the ids.
    have = json.loads(run(strata, "generate", "--model", path, "--prompt-tokens", ",".join(map(str, prompt)), "--max-tokens",
                          str(TOKENS), "--json"))["tokens"]
    if have == want:
        return []
    same = next((i for i, pair in enumerate(zip(have, want)) if pair[0] != pair[1]), min(len(have), len(want)))
    with torch.no_grad():
        top = torch.topk(model(torch.tensor([prompt + want[:same]])).logits[0, -1], 2).values
    near = float(top[0] - top[1]) < 1e-4
    return [("near tie" if near else "tokens") + f": {have} for {want}"]


def compare_loss(strata, path, data, tokens):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    total = count = 0
    with torch.no_grad():
        for first in range(0, len(tokens) - SEQ, SEQ):
            row = torch.tensor([tokens[first:first + SEQ + 1]])
            logits = model(input_ids=row[:, :-1], use_cache=False).logits.double()
            total += float(torch.nn.functional.cross_entropy(logits[0], row[0, 1:], reduction="sum"))
            count += SEQ
    have = json.loads(run(strata, "eval", "--model", path, "--data", data, "--seq-len", str(SEQ), "--json"))["loss"]
    return [] if abs(have - total / count) <= 1e-5 * have else [f"loss: {have} for {total / count}"]


def compare_preset(strata, scratch, preset, data):
    """A directory that strata writes, from the start, as transformers reads it: config, every weight used, and the loss."""
    out = scratch + "/preset"
    run(strata, "train", "--model", preset, "--data", data, "--seq-len", "32", "--max-steps", "1", "--lr", "0", "--out", out,
        "--overwrite")
    _, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    return [key for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]]


def compare_out(strata, path, data):
    out, wrong = path + "-out", []
    run(strata, "train", "--model", path, "--data", data, "--seq-len", "32", "--max-steps", "1", "--lr", "0", "--out", out)
    for name in ("config.json", "generation_config.json"):
        texts = [open(d + "/" + name).read() if os.path.exists(d + "/" + name) else None for d in (path, out)]
        if texts[0] != texts[1]:
            wrong.append(name)
    if AutoConfig.from_pretrained(path).to_diff_dict() != AutoConfig.from_pretrained(out).to_diff_dict():
        wrong.append("AutoConfig")
    before, after = (AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32).state_dict() for d in (path, out))
    return wrong + [key for key in before if not torch.equal(before[key], after[key])]


def main():
    strata, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    rnd = random.Random(1)
    failures = 0
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as scratch:
        data = scratch + "/data.bin"
        text = list(bytes(range(256)) * 2 + bytes(rnd.randrange(256) for _ in range(1536)))
        open(scratch + "/text", "wb").write(bytes(text))
        subprocess.run([strata, "tokens", scratch + "/text", "--out", data], check=True, capture_output=True)
        for index in range(count):
            path = f"{scratch}/{index}"
            make_model(path, rnd, index)
            for line in compare_loss(strata, path, data, text) + compare_tokens(strata, path, rnd) + compare_out(strata, path, data):
                failures += not line.startswith("near tie")
                print(f"model {index} ({AutoConfig.from_pretrained(path).model_type}): {line}")
        for preset in PRESETS:
            for line in compare_preset(strata, scratch, preset, data):
                failures += 1
                print(f"{preset}: {line}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {count} models, {len(PRESETS)} presets, "
          f"{failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
