#!/usr/bin/env python3
"""Compares chat templates as strata renders them with transformers' apply_chat_template.

    tools/compare_templates.py RENDER TEMPLATE.jinja...     [--count 200] [--seed 1]

RENDER is build/*/tests/text/render_template.  Each template renders COUNT seeded conversations: with and without system messages,
answers that think, calls of tools, Unicode, white space, and text that looks like a template or a special token.  Prints a line per
template: equal, refused by both, different, refused by strata alone, refused by the reference alone.  Ends with 1 if one differs.

Texts of official templates lie in the source package of llama-cpp-python on PyPI (vendor/llama.cpp/models/templates).
Messages are those that transformers 5.24 makes of them.  Last run with 5.24.0, Jinja2 3.1.6, on 200 published templates.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from transformers.utils import chat_template_utils

WORDS = ["hello", "world", "über", "naïve", "日本語", "🙂👩‍👩‍👧", "foo\nbar", "  spaced  ", "\n\nlead", "tail\n\n", "<|im_end|>",
         "{{ x }}", "{% if %}", "don't", '"quoted"', "back\\slash", "tab\there", "<think>\nhm\n</think>\n\nok", "</think>",
         "/no_think", "a'b\"c", "\u00a0nbsp\u00a0", "e\u0301", "line\u2028x", "[INST]", "1 < 2 && 3 > 2"]
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "get_x", "arguments": {"a": 1, "b": [True, None, 2.5, "é"], "c": {"z": "q\n"}}}}
TOOL = {"type": "function", "function": {"name": "get_x", "description": "d", "parameters": {
    "type": "object", "required": ["a"],
    "properties": {"a": {"type": "integer", "description": "x"}, "b": {"type": "array", "items": {"type": "string"}}}}}}


class Date(chat_template_utils.datetime):
    @classmethod
    def now(cls):
        return cls(2026, 2, 3)


def conversation(rng):
    def text():
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))

    messages = [{"role": "system", "content": text()}] if rng.random() < 0.4 else []
    for i in range(rng.randint(1, 6)):
        role = "user" if i % 2 == 0 else "assistant"
        if rng.random() < 0.03:
            role = rng.choice(["system", "tool", "assistant", "user"])
        message = {"role": role, "content": text()}
        if role == "assistant" and rng.random() < 0.15:
            message["reasoning_content"] = text()
        if role == "assistant" and rng.random() < 0.1:
            message["tool_calls"] = [CALL]
        messages.append(message)
    variables = {}
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.1:
        variables["tools"] = [TOOL]
    return {"messages": messages, "variables": variables, "add_generation_prompt": rng.random() < 0.5}


def reference(template, talk):
    given = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **talk["variables"]}
    try:
        messages = chat_template_utils._normalize_chat_messages(talk["messages"])
        messages = chat_template_utils._alias_reasoning_fields(messages)
        return template.render(messages=messages, add_generation_prompt=talk["add_generation_prompt"], **given)
    except Exception:
        return None


def compare(render, path, talks, talks_path):
    try:
        template = chat_template_utils._compile_jinja_template(open(path, encoding="utf-8", newline="").read())
    except Exception:
        template = None
    lines = subprocess.run([render, path, talks_path], capture_output=True, check=True, text=True).stdout.splitlines()
    assert len(lines) == len(talks)
    counts = dict.fromkeys(["equal", "refused by both", "different", "refused by strata", "refused by the reference"], 0)
    shown = ""
    for talk, line in zip(talks, lines):
        wanted = reference(template, talk)
        got = None if line.startswith("error: ") else bytes.fromhex(line.split(" ")[0]).decode()
        if got == wanted:
            counts["equal" if got is not None else "refused by both"] += 1
        elif got is None:
            counts["refused by strata"] += 1
            shown = shown or line
        else:
            counts["different" if wanted is not None else "refused by the reference"] += 1
            shown = f"{wanted!r} but got {got!r}"
    print(os.path.basename(path) + ": " + ", ".join(f"{n} {what}" for what, n in counts.items() if n), shown, sep="\n    " if shown else "")
    return counts["different"] + counts["refused by the reference"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("render")
    parser.add_argument("templates", nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chat_template_utils.datetime = Date
    rng = random.Random(args.seed)
    talks = [conversation(rng) for _ in range(args.count)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(talk, ensure_ascii=False) + "\n" for talk in talks)
        file.flush()
        sys.exit(1 if sum(compare(args.render, path, talks, file.name) for path in args.templates) else 0)


main()
