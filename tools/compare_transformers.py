#!/usr/bin/env python3
"""Compare strata with transformers on tiny random models: tools/compare_transformers.py STRATA [COUNT]

Each of COUNT models (GPT-2, Llama, Qwen2, Mistral by turns) gets unknown keys, end tokens as number, list, null or not at all, and in
half the cases a generation_config.json.  Two things are compared:
  - greedy tokens of `strata generate` and of generate(), in fp32;
  - config.json, generation_config.json and weights after a step with a learning rate of 0 and --out, in fp32.
Prints what differs; exit code 1 then.  Needs torch and transformers."""
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config)

TOKENS = 60
LLAMA = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3)


def configs(rnd):
    return [GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=2, initializer_range=0.4),
            LlamaConfig(**LLAMA),
            Qwen2Config(**LLAMA, use_sliding_window=True, max_window_layers=rnd.choice([0, 1, 2, 28]), sliding_window=100),
            MistralConfig(**LLAMA, sliding_window=rnd.choice([None, 100, 4096]))]


def ends(rnd):
    return rnd.choice([None, rnd.randrange(256), [rnd.randrange(256) for _ in range(rnd.randrange(1, 9))]])


def edit(path, change):
    values = json.load(open(path)) if os.path.exists(path) else {}
    change(values)
    json.dump(values, open(path, "w"), indent=2)


def make_model(path, rnd, index):
    """A directory with keys as others write them."""
    torch.manual_seed(index)
    AutoModelForCausalLM.from_config(configs(rnd)[index % 4]).save_pretrained(path)

    def change_config(values):
        values["my_key"] = {"b": [1, 2.5, None]}
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            values.pop(key, None)
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
    return subprocess.run([strata, *words, "--set", "bf16.enabled=false", "--quiet"], check=True, capture_output=True, text=True).stdout


def compare_tokens(strata, path, rnd):
    prompt = [rnd.randrange(256) for _ in range(rnd.randrange(1, 9))]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    want = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)[0, len(prompt):].tolist()
    # The byte vocabulary is written as bytes; --json has the ids.
    have = json.loads(run(strata, "generate", "--model", path, "--prompt-tokens", ",".join(map(str, prompt)), "--max-tokens",
                          str(TOKENS), "--json"))["tokens"]
    return [] if have == want else [f"tokens: {have} for {want}"]


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
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as scratch:
        data = scratch + "/data.bin"
        open(scratch + "/text", "wb").write(bytes(range(256)) * 8)
        subprocess.run([strata, "tokens", scratch + "/text", "--out", data], check=True, capture_output=True)
        for index in range(count):
            path = f"{scratch}/{index}"
            make_model(path, rnd, index)
            for line in compare_tokens(strata, path, rnd) + compare_out(strata, path, data):
                failures += 1
                print(f"model {index} ({AutoConfig.from_pretrained(path).model_type}): {line}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {count} models, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
