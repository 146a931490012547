#!/usr/bin/env python3
"""Writes tests/text/dialogs_golden.json: 200 seeded conversations, and for templates and tokenizers hashes of ids and masks.

    tools/make_golden_dialogs.py RENDER > tests/text/dialogs_golden.json

RENDER is build/*/tests/text/render_template, which is asked for the texts of the built-in templates alone.  Ids are those of
transformers' apply_chat_template.  Where a template has {% generation %}, so is the mask (return_assistant_tokens_mask); elsewhere
it comes from where each message stands in the text, from what follows the message before an answer when the messages before are
rendered with the generation prompt, and from the tokenizer's offsets: tokens from where this ends in the text, up to the first
special token or end of text behind the answer.
Written with transformers 5.24.0.
"""
import json
import random
import subprocess
import sys

from transformers import PreTrainedTokenizerFast

TOKENIZERS = "tests/golden/tokenizers/"
WORDS = ["hello", "world", "über", "naïve", "日本語", "🙂", "foo\nbar", "two  spaces", "don't", "f(x) = 3*x", "Ünï", "1234", "a\tb"]
PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
GENERATION = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
              "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>"
              "{% endif %}\n{% endfor %}")
LAST_ALONE = ("{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' and loop.last %}"
              "{% generation %}{{ ' ' + message.content + ' ' + eos_token }}{% endgeneration %}{% elif message.role == 'assistant' %}"
              "{{ ' ' + message.content + ' ' + eos_token }}{% else %}[INST] {{ message.content }} [/INST]{% endif %}{% endfor %}")
# Tokenizer, the tokens that begin and end its texts, built-in template or text.
CASES = [
    ("qwen2", None, "<|im_end|>", "chatml"), ("smollm", None, "<|im_end|>", "chatml"), ("gpt2", None, "<|endoftext|>", "chatml"),
    ("llama2", "<s>", "</s>", "llama2"), ("llama3", "<|begin_of_text|>", "<|eot_id|>", "llama3"), ("mistral", "<s>", "</s>", "mistral"),
    ("qwen2", None, "<|im_end|>", "qwen"), ("gemma", "<s>", "</s>", "gemma"), ("gpt2", None, "<|endoftext|>", "alpaca"),
    ("phi3", "<s>", "<|endoftext|>", PHI3), ("qwen2", None, "<|im_end|>", GENERATION), ("llama2", "<s>", "</s>", LAST_ALONE),
]


def conversation(rng, number):
    def text(name):  # begins and ends with a word that stands nowhere else
        words = [name] + [rng.choice(WORDS) for _ in range(rng.randint(0, 5))] + [name[::-1]]
        return rng.choice(["", "", " ", "\n\n"]) + rng.choice([" ", "  ", "\n"]).join(words) + rng.choice(["", "", " ", "\n"])

    messages = [{"role": "system", "content": text("s%dz" % number)}] if rng.random() < 0.3 else []
    for i in range(2 * rng.randint(1, 3)):
        role = "assistant" if i % 2 else "user"
        messages.append({"role": role, "content": text("%s%dm%dq" % (role[0], number, i))})
    return messages


def extents(text, messages, trims):
    """Where the messages stand."""
    found, at = [], 0
    for message in messages:
        content = message["content"].strip() if trims else message["content"]
        content = content if content in text[at:] else content.strip()
        if message["role"] != "assistant" and content not in text[at:]:  # a template may leave it out
            found.append((at, at))
            continue
        begin = text.index(content, at)
        assert text.find(content, begin + 1) < 0
        at = begin + len(content)
        found.append((begin, at))
    return found


def part(a, b):
    """Where two texts part."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def mask_by_extents(tokenizer, template, text, messages, trims):
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    mask = [0] * len(ids)
    found = extents(text, messages, trims) + [(len(text), len(text))]
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        first, end = found[number]
        before, after = found[number - 1][1], found[number + 1][0]
        asked = tokenizer.apply_chat_template(messages[:number], chat_template=template, tokenize=False, add_generation_prompt=True)
        tail = asked
        for content in [messages[number - 1]["content"], messages[number - 1]["content"].strip()]:
            if content in text[:before] and content in asked:
                tail = asked[asked.rindex(content) + len(content):]
                break
        same = part(tail, text[before:first])
        begin = before + same
        assert same > 0 or not tail or before == first
        ends = [offsets[i][1] for i in range(len(ids)) if end <= offsets[i][0] < after and ids[i] in special]
        end = ends[0] if ends else end
        for i, (a, b) in enumerate(offsets):
            mask[i] |= a < b and before <= a < end and b > begin
    for i in reversed(range(len(ids) - 1)):
        mask[i] |= offsets[i][0] == offsets[i][1] and mask[i + 1]
    return ids, [int(m) for m in mask]


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def load(name, bos, eos):
    with open(TOKENIZERS + name + ".json", encoding="utf-8") as file:
        spec = json.load(file)

    def untrimmed(part):  # offsets without the spaces that tokens begin with would be those of another token
        if isinstance(part, dict):
            if "trim_offsets" in part:
                part["trim_offsets"] = False
            for value in part.values():
                untrimmed(value)
        elif isinstance(part, list):
            for value in part:
                untrimmed(value)

    untrimmed(spec["post_processor"])
    path = "/tmp/make_golden_dialogs.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    return PreTrainedTokenizerFast(tokenizer_file=path, bos_token=bos, eos_token=eos)


def one(tokenizer, template, messages):
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except Exception:
        return "refused"
    if "generation %}" in template:
        out = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = list(out["input_ids"]), list(out["assistant_masks"])
    else:
        ids, mask = mask_by_extents(tokenizer, template, text, messages, "| trim" in template)
        got = tokenizer.apply_chat_template(messages, chat_template=template)
        assert ids == list(got if isinstance(got, list) else got["input_ids"])
    return fnv1a(b"".join(i.to_bytes(4, "little") for i in ids) + bytes(mask))


def main():
    rng = random.Random(20)
    talks = [conversation(rng, number) for number in range(200)]
    cases = []
    for name, bos, eos, template in CASES:
        case = {"tokenizer": name, "bos_token": bos, "eos_token": eos}
        case["template"] = template
        if "{" not in template:
            template = subprocess.run([sys.argv[1], "--builtin", template], capture_output=True, check=True, text=True).stdout
        tokenizer = load(name, bos, eos)
        case["hashes"] = [one(tokenizer, template, messages) for messages in talks]
        cases.append(case)
    json.dump({"conversations": talks, "cases": cases}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


main()
