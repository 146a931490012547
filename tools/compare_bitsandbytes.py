#!/usr/bin/env python3
"""Compare strata's nf4 with bitsandbytes on the CPU: tools/compare_bitsandbytes.py STRATA [FAMILY...]

Tiny random models of several families, in fp32 and bf16, without quantisation, in nf4, and with double quantisation:
  - the loss of `strata eval`, and of transformers' eager model with bitsandbytes' layers;
  - the same of what transformers saves of that model, a directory with 4-bit weights, read as it is and once more in nf4.
  - in fp32, the losses of 20 steps of an adapter beside such weights, which starts as PEFT's does.
Losses in fp32 may differ by 1e-5 of their value; what bf16 may differ by is what it differs by without quantisation, and 1e-3.
Rows are whole blocks of 64: others bitsandbytes 0.50 dequantises on the CPU with the scales of neighbours.
Prints each; exit code 1 if one is further off.  Needs torch, transformers, accelerate, peft and bitsandbytes."""
import json
import os
import random
import subprocess
import sys
import tempfile

import peft
import torch
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, Gemma2Config, GPT2Config, LlamaConfig, Olmo2Config, Phi3Config,
                          Qwen2Config)

SEQ, TOKENS, STEPS, LR = 48, 400, 20, 1e-3
SIZES = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1, pad_token_id=None, bos_token_id=None,
             eos_token_id=None)
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "gemma2": lambda **keys: Gemma2Config(head_dim=16, **keys),
            "phi3": Phi3Config, "olmo2": Olmo2Config,
            "gpt2": lambda **_: GPT2Config(vocab_size=256, n_embd=64, n_inner=192, n_layer=2, n_head=4, n_positions=128,
                                           initializer_range=0.1, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None,
                                           eos_token_id=None)}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
torch.compiler.set_stance("force_eager")


def ours(strata, path, data, precision, quantization):
    config = {"bf16": {"enabled": precision == "bf16"}, "strata": {"quantization": quantization}}
    with open(data + ".json", "w") as file:
        json.dump(config, file)
    command = [strata, "eval", "--model", path, "--data", data, "--seq-len", str(SEQ), "--config", data + ".json", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return json.loads(result.stdout)["loss"]


def theirs(path, precision, quantization, save=None):
    keys = {}
    if quantization != "none":
        keys["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                         bnb_4bit_compute_dtype=PRECISIONS[precision],
                                                         bnb_4bit_use_double_quant=quantization == "nf4-double")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=PRECISIONS[precision], device_map="cpu", attn_implementation="eager",
                                                 **keys)
    if save is not None:
        model.save_pretrained(save)
    return model.train()  # without dropout; in inference bitsandbytes would multiply in bf16, whatever the compute dtype


def loss_of(model, tokens):
    total, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(tokens) - SEQ, SEQ):
            row = torch.tensor([tokens[first:first + SEQ + 1]])
            logits = model(row[:, :-1]).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, row[0, 1:]).item()
            count += 1
    return total / count


def compare(strata, path, data, tokens, precision):
    wrong = 0
    for quantization in ("none", "nf4", "nf4-double"):
        saved = f"{path}-{quantization}"
        want = loss_of(theirs(path, precision, quantization, saved), tokens)
        cases = {quantization: ours(strata, path, data, precision, quantization)}
        if quantization != "none" and not os.path.basename(path).startswith("gpt2"):  # which strata does not read
            cases["saved"] = ours(strata, saved, data, precision, "none")
            cases["saved in nf4"] = ours(strata, saved, data, precision, "nf4")
        for name, have in cases.items():
            apart = abs(have - want) / want
            bad = apart > (1e-5 if precision == "fp32" else 1e-3)
            wrong += bad
            print(f"{os.path.basename(path):12} {quantization:10} {name:12} {have:.6f} {want:.6f} {apart:.1e}{' FAR' if bad else ''}")
    return wrong


def adapted(path, quantization, adapter):
    """An adapter of all linear layers, none of whose matrices is zero, written to `adapter`."""
    torch.manual_seed(1)
    model = peft.get_peft_model(theirs(path, "fp32", quantization), peft.LoraConfig(r=4, target_modules="all-linear",
                                                                                    task_type="CAUSAL_LM"))
    parameters = [p for name, p in model.named_parameters() if "lora_" in name]
    with torch.no_grad():
        for p in parameters:
            p.copy_(0.05 * torch.randn_like(p))
    model.save_pretrained(adapter, save_embedding_layers=False)
    return model, parameters


def their_steps(path, quantization, adapter, tokens):
    model, parameters = adapted(path, quantization, adapter)
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.01)
    row, losses = torch.tensor([tokens[:SEQ + 1]]), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(row[:, :-1]).logits[0].float(), row[0, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_steps(strata, path, quantization, adapter, data):
    config = {"bf16": {"enabled": False}, "gradient_clipping": 0, "train_batch_size": 1, "strata": {"quantization": quantization},
              "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0.01}}}
    with open(data + ".json", "w") as file:
        json.dump(config, file)
    command = [strata, "train", "--model", path, "--data", data, "--seq-len", str(SEQ), "--config", data + ".json", "--adapter",
               adapter, "--max-steps", str(STEPS), "--metrics", data + ".metrics"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    with open(data + ".metrics") as file:
        rows = [json.loads(line) for line in file]
    os.remove(data + ".metrics")
    return [row["loss"] for row in rows if "loss" in row]


def compare_steps(strata, path, data, tokens):
    wrong = 0
    for quantization in ("nf4", "nf4-double"):
        want = their_steps(path, quantization, path + "-adapter", tokens)
        have = our_steps(strata, path, quantization, path + "-adapter", data)
        apart = max(abs(a - b) / b for a, b in zip(have, want, strict=True))
        wrong += apart > 1e-5
        print(f"{os.path.basename(path):12} {quantization:10} {STEPS} steps     {have[-1]:.6f} {want[-1]:.6f} {apart:.1e}"
              f"{' FAR' if apart > 1e-5 else ''}")
    return wrong


def main():
    strata, rnd, wrong = sys.argv[1], random.Random(1), 0
    text = bytes(rnd.randrange(256) for _ in range(TOKENS))
    with tempfile.TemporaryDirectory() as scratch:
        data, row = scratch + "/data.bin", scratch + "/row.bin"
        for path, part in ((data, text), (row, text[:SEQ + 1])):
            with open(scratch + "/text", "wb") as file:
                file.write(part)
            subprocess.run([strata, "tokens", scratch + "/text", "--out", path], check=True, capture_output=True)
        for name, config in FAMILIES.items():
            if sys.argv[2:] and name not in sys.argv[2:]:
                continue
            torch.manual_seed(len(name))
            model = AutoModelForCausalLM.from_config(config(**SIZES))
            for precision, dtype in PRECISIONS.items():
                path = f"{scratch}/{name}-{precision}"
                model.to(dtype).save_pretrained(path)  # transformers would round to bf16 before it quantises
                wrong += compare(strata, path, data, list(text), precision)
                if precision == "fp32":
                    wrong += compare_steps(strata, path, row, list(text))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
