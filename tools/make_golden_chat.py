#!/usr/bin/env python3
"""Make tests/golden/chat: tiny models with tokenizer and chat template, and what transformers' generate says with them.

Never run by tests or CI; its output is committed:

    python3 tools/make_golden_chat.py [--out tests/golden/chat]

Files of each: config.json, generation_config.json, model.safetensors (bf16, random), tokenizer.json (of tests/golden/tokenizers),
tokenizer_config.json, the chat template there or in chat_template.jinja, counted.jinja (a template whose first words change with
every message), and golden.json: greedy texts after prompts, and conversations turn by turn, each by apply_chat_template and
generate from the beginning.  Seeds are tried until all choices are clear and an answer ends with an end token.
"""
import argparse
import json
import os
import shutil

import numpy
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

NEW, ANSWER, MARGIN = 64, 24, 1e-3
CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are tiny.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{%- if messages[0]['role'] == 'system' -%}
    {%- set loop_messages = messages[1:] -%}{%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' -%}
{%- else -%}
    {%- set loop_messages = messages -%}{%- set system = '' -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- else -%}
        {{ ' ' + message['content'].strip() + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}
"""
COUNTED = (
    "{{ messages | length }} on {{ strftime_now('%d %b %Y') }}\n"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}\n{% endfor %}assistant:"
)
DATE = "2026-02-03"

MODELS = {
    "qwen": dict(tokenizer="qwen2", vocab=432, bos=None, eos="<|im_end|>", ends=["<|im_end|>", "<|endoftext|>"], template=CHATML),
    "llama": dict(tokenizer="llama2", vocab=679, bos="<s>", eos="</s>", ends=["</s>"], template=LLAMA2),
}
PROMPTS = ["In the beginning", " two  spaces and\n\na caf\u00e9, \u4f60\u597d \U0001f600", "<|im_start|>user"]
USERS = ["Who are you?", "Say it again, in \u4e2d\u6587!", "And a third time: 1 + 1 = ?", "x"]
SYSTEM = "You answer in riddles."


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def make_directory(path, kind, seed):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    shutil.copy(os.path.join("tests/golden/tokenizers", kind["tokenizer"] + ".json"), path + "/tokenizer.json")
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "eos_token": kind["eos"], "bos_token": kind["bos"]}
    if kind["template"] is CHATML:
        said["chat_template"] = kind["template"]
    else:
        with open(path + "/chat_template.jinja", "w") as file:
            file.write(kind["template"])
    write_json(path + "/tokenizer_config.json", said)
    with open(path + "/counted.jinja", "w") as file:
        file.write(COUNTED)
    tokenizer = AutoTokenizer.from_pretrained(path)
    ends = [tokenizer.convert_tokens_to_ids(t) for t in kind["ends"]]
    config = LlamaConfig(vocab_size=kind["vocab"], hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id, eos_token_id=ends[0])
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    rng = numpy.random.Generator(numpy.random.Philox(seed))
    with torch.no_grad():
        for name, p in model.named_parameters():
            value = 1 + 0.1 * rng.standard_normal(tuple(p.shape)) if p.dim() == 1 else 0.3 * rng.standard_normal(tuple(p.shape))
            if "embed" in name:
                value[ends[0]] *= 2  # now and then the likeliest
            p.copy_(torch.from_numpy(value).to(torch.bfloat16).float())
    config.architectures, config.torch_dtype = ["LlamaForCausalLM"], "float32"
    config.save_pretrained(path)
    save_file({n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}, path + "/model.safetensors", metadata={"format": "pt"})
    GenerationConfig(eos_token_id=ends, do_sample=False, pad_token_id=ends[0]).save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32, attn_implementation="eager").eval()
    return model, tokenizer


def continue_ids(model, ids, count):
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=count,
                         output_scores=True, return_dict_in_generate=True)
    margin = min(float(torch.topk(s[0], 2).values.diff().abs()) for s in out.scores)
    return [int(i) for i in out.sequences[0][len(ids):]], margin


def continue_text(model, tokenizer, text):
    ids = tokenizer(text).input_ids
    new, margin = continue_ids(model, ids, NEW)
    return {"text": text, "tokens": ids, "new": new, "continuation": tokenizer.decode(new, skip_special_tokens=True)}, margin


def talk(model, tokenizer, template):
    messages, turns, least = [{"role": "system", "content": SYSTEM}], [], float("inf")
    for user in USERS:
        messages.append({"role": "user", "content": user})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, chat_template=template)
        new, margin = continue_ids(model, ids, ANSWER)
        least = min(least, margin)
        answer = tokenizer.decode(new, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        turns.append({"user": user, "tokens": ids, "new": new, "answer": answer})
    return turns, least


def make(name, path, seed):
    kind = MODELS[name]
    model, tokenizer = make_directory(path, kind, seed)
    golden = {"versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers)}, "seed": seed, "system": SYSTEM, "date": DATE}
    pairs = [continue_text(model, tokenizer, text) for text in PROMPTS]
    golden["prompts"] = [p for p, _ in pairs]
    golden["chat"], least = talk(model, tokenizer, None)
    golden["counted"], least2 = talk(model, tokenizer, COUNTED.replace("strftime_now('%d %b %Y')", "'03 Feb 2026'"))
    margin = min([least, least2] + [m for _, m in pairs])
    ended = [len(t["new"]) < ANSWER for t in golden["chat"]]
    ended_prompts = [len(p["new"]) < NEW for p in golden["prompts"]]
    if margin < MARGIN or not any(ended) or all(ended) or not any(ended_prompts) or any(t["new"][0] == t["new"][1:2] for t in golden["chat"]):
        return False
    golden["margin"] = margin
    write_json(path + "/golden.json", golden)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="tests/golden/chat")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in MODELS:
        path = os.path.join(arguments.out, name)
        seed = next(s for s in range(1000) if make(name, path, s))
        print(name, "seed", seed)


if __name__ == "__main__":
    main()
