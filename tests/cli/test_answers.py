#!/usr/bin/env python3
"""What a template writes around an answer is learnt with it: tiny models, taught 64 conversations, answer the first 16 of them.

    test_answers.py STRATA [TEMPLATE...]

Each begins from random weights and takes 250 steps; then the likeliest tokens after each of 16 prompts must be the taught answer, its
thoughts and its end token (Llama 2 writes a space before it).  TEMPLATE: llama2, mistral, gemma (a vocabulary with Metaspace),
chatml, llama3, thoughts (byte level); default: all.
"""
import array
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORDS = ["red", "blue", "green", "white", "black", "brown", "gray", "pink"]
HIDDEN, INNER, LAYERS, HEADS = 32, 64, 2, 4
FP32 = ["--set", "bf16.enabled=false", "--threads", "2"]

# As Qwen3's: the last answers keep their thoughts, older ones lose them, and an answer without any has an empty block.
THOUGHTS = """{%- set ns = namespace(last=messages|length - 1, seek=true) %}
{%- for m in messages[::-1] %}{% if ns.seek and m.role == 'user' %}{% set ns.last = messages|length - 1 - loop.index0 %}{% set ns.seek = false %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- set content = m.content %}{% set thought = m.reasoning_content or '' %}
{%- if m.role == 'assistant' and '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.index0 > ns.last %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
{{- content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# Tokenizer of tests/golden/tokenizers; tokens that it lacks, and whether they are special; the tokens that begin and end a text.
TEMPLATES = {
    "llama2": ("llama2", [], "<s>", "</s>"),
    "mistral": ("llama2", [], "<s>", "</s>"),
    "gemma": ("gemma", [("<end_of_turn>", True)], "<s>", "<end_of_turn>"),
    "chatml": ("qwen2", [], None, "<|im_end|>"),
    "llama3": ("llama3", [("<|end_header_id|>", True)], "<|begin_of_text|>", "<|eot_id|>"),
    "thoughts": ("qwen2", [("<think>", False), ("</think>", False)], None, "<|im_end|>"),
}


def rows(thoughts):
    """Pairs of a question and an answer, which its last word decides."""
    for i, a in enumerate(WORDS):
        for j, b in enumerate(WORDS):
            kind, answer = ("color", "Yes it is") if (i + j) % 2 == 0 else ("fruit", "No it is not")
            yield f"Is {a} {b} a {kind}?", f"<think>\nA {kind} is asked for.\n</think>\n\n{answer}" if thoughts else answer


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


def write_tokenizer(path, name):
    """Tokenizer and settings; how many tokens there are, and the ids of those that begin and end a text."""
    base, added, bos, eos = TEMPLATES[name]
    with open(f"{ROOT}/tests/golden/tokenizers/{base}.json", encoding="utf-8") as file:
        tokenizer = json.load(file)
    count = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    for content, special in added:
        tokenizer["added_tokens"].append({"id": count, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": special})
        count += 1
    write_json(path + "/tokenizer.json", tokenizer)
    write_json(path + "/tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos})
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    return count, ids.get(bos), ids[eos]


def write_model(path, name):
    vocab, bos, eos = write_tokenizer(path, name)
    write_json(path + "/config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "bos_token_id": bos, "eos_token_id": eos, "hidden_act": "silu"})
    shapes = {"model.embed_tokens.weight": [vocab, HIDDEN], "model.norm.weight": [HIDDEN]}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes.update({f"{layer}self_attn.{p}_proj.weight": [HIDDEN, HIDDEN] for p in "qkvo"})
        shapes.update({f"{layer}mlp.{p}_proj.weight": [INNER, HIDDEN] for p in ("gate", "up")})
        shapes.update({f"{layer}mlp.down_proj.weight": [HIDDEN, INNER], f"{layer}input_layernorm.weight": [HIDDEN],
                       f"{layer}post_attention_layernorm.weight": [HIDDEN]})
    rng, header, data = random.Random(1), {}, array.array("f")
    for tensor, shape in shapes.items():
        count, begin = shape[0] * (shape[1] if len(shape) > 1 else 1), 4 * len(data)
        data.extend([1.0] * count if len(shape) == 1 else [rng.gauss(0, 0.1) for _ in range(count)])
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(data)]}
    if sys.byteorder == "big":
        data.byteswap()
    text = json.dumps(header).encode()
    with open(path + "/model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data.tobytes())


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def answers_right(strata, name, work):
    """Of 16 answers, those that are right to their end; and the first that is not."""
    model, taught = f"{work}/{name}", list(rows(name == "thoughts"))
    os.mkdir(model)
    write_model(model, name)
    template = name
    if name == "thoughts":
        template = model + "/thoughts.jinja"
        with open(template, "w", encoding="utf-8") as file:
            file.write(THOUGHTS)
    write_json(model + ".json", [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in taught])
    run([strata, "train", "--model", model, "--template", template, "--data", model + ".json", "--max-steps", "250", "--seq-len", "64",
         "--layout", "rows", "--micro-batch", "8", "--lr", "5e-3", "--warmup-steps", "10", "--machine", work + "/machine.json",
         "--out", model + ".out", "--quiet", *FP32])
    right, wrong = 0, ""
    for question, answer in taught[:16]:
        said = json.loads(run([strata, "generate", "--model", model + ".out", "--template", template, "--chat", "--prompt", question,
                               "--temperature", "0", "--max-tokens", "40", "--quiet", "--json", *FP32]))
        if said["text"].strip() == answer and said["stopped_by"] == "end":
            right += 1
        elif wrong == "":
            wrong = f": to {question!r} {said['text']!r} (stopped by {said['stopped_by']}), not {answer!r}"
    return right, wrong


def main():
    strata, names = sys.argv[1], sys.argv[2:] or list(TEMPLATES)
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        write_json(work + "/machine.json", {"name": "test", "matmul_flops": 1e11, "upload": 1e10, "download": 1e10, "update": 1e9})
        for name in names:
            right, wrong = answers_right(strata, name, work)
            print(f"{name}: {right} of 16 answers right{wrong}", flush=True)
            bad += right < 16
    sys.exit(1 if bad else 0)


main()
