#!/usr/bin/env python3
"""Compare the ids of `strata tokens` with those of the reference library, over text of any size.

Never run by tests or CI.  Needs tokenizers (pip install tokenizers==0.22.2):

    python3 tools/compare_tokenizers.py --strata build/release/cli/strata --megabytes 20 tokenizer.json... --texts TEXT...

The texts are cut into documents of a megabyte; to them come documents made here: every code point, digits, white space, emoji
sequences, special tokens of the tokenizer in text, combining marks in any order, bytes that are not UTF-8.  Then every code point's
NFC, alone and behind a letter, where the tokenizer has that normalizer (each is in a document).  Prints one line for each tokenizer;
exits 1 if an id differs.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import tokenizers

DOCUMENT_BYTES = 1 << 20


def documents(paths, megabytes):
    """Bytes of the texts, cut anywhere: the ends are not UTF-8, then."""
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            while total < megabytes << 20:
                part = file.read(DOCUMENT_BYTES)
                if not part:
                    break
                total += len(part)
                yield part


def made(tokens, rng):
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    yield "".join(chr(c) + (" " if c % 7 == 0 else "e" if c % 5 == 0 else "") for c in codes).encode()
    yield "".join("x" + chr(c) for c in codes).encode()
    digits = "0123456789\u0660\u0967\u00bd\u2167 ,."
    yield "".join(rng.choice(digits) for _ in range(200000)).encode()
    space = " \n\r\t\u00a0\u2003\u3000\u0085\u2028  \n" + "aZ.'1"
    yield "".join(rng.choice(space) for _ in range(300000)).encode()
    emoji = ["\U0001f468", "\u200d", "\U0001f469", "\ufe0f", "\U0001f3fd", "\U0001f1e9", "\U0001f1ea", "\u2764", "1\u20e3", " ", "a"]
    yield "".join(rng.choice(emoji) for _ in range(200000)).encode()
    pieces = tokens + [" ", "\n", "word", " a", "<", "|", ">", "\u2581", "1", "caf\u00e9", "e\u0301", "--", "'s"]
    yield "".join(rng.choice(pieces) for _ in range(200000)).encode()
    marks = [c for c in range(0x300, 0x370)] + [0x483, 0x591, 0x5B0, 0x64B, 0x93C, 0xE38, 0xF71, 0xF74, 0x1100, 0x1161, 0x11A8, 0xAC00, 0x3099, 0x1D165]
    letters = [0x61, 0x65, 0xC5, 0x1E9B, 0x915, 0xF40, 0x304B, 0xAC00, 0x1100, 0x212B, 0x20]
    yield "".join(chr(rng.choice(marks if rng.random() < 0.7 else letters)) for _ in range(300000)).encode()
    yield bytes(rng.choice(b"\xff\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80ab \n\xed\xa0\xf4\x90") for _ in range(300000))


def ids_of(strata, tokenizer, document, folder):
    text, out = os.path.join(folder, "text"), os.path.join(folder, "ids.bin")
    with open(text, "wb") as file:
        file.write(document)
    subprocess.run(
        [strata, "tokens", text, "--tokenizer", tokenizer, "--out", out, "--overwrite"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with open(out, "rb") as file:
        data = file.read()
    width = 4 if int.from_bytes(data[:4], "little") == 20240801 else 2
    return [int.from_bytes(data[i : i + width], "little") for i in range(1024, len(data), width)]


def compare(strata, path, texts, megabytes):
    reference = tokenizers.Tokenizer.from_file(path)
    tokens = [t["content"] for t in json.load(open(path, encoding="utf-8"))["added_tokens"]]
    total_bytes = total_ids = back = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for document in [*made(tokens, random.Random(1)), *documents(texts, megabytes)]:
            text = document.decode("utf-8", errors="replace")
            want, got = reference.encode(text).ids, ids_of(strata, path, document, folder)
            if want != got:
                first = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
                print(f"{path}: document {count} differs at id {first}: {want[first:first + 5]}, not {got[first:first + 5]}")
                return False
            total_bytes += len(document)
            total_ids += len(want)
            count += 1
            back += reference.decode(want, skip_special_tokens=True) == text
    print(f"{path}: {total_bytes / 1e6:.1f} MB in {count} documents, {total_ids} ids, all equal; {back} documents decode to themselves", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strata", default="build/release/cli/strata")
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("tokenizer", nargs="+")
    parser.add_argument("--texts", nargs="+", required=True)
    arguments = parser.parse_args()
    good = [compare(arguments.strata, path, arguments.texts, arguments.megabytes) for path in arguments.tokenizer]
    sys.exit(0 if all(good) else 1)


main()
