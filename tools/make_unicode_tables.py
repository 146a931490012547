#!/usr/bin/env python3
"""Make text/tokenizer/unicode_table.inc: what the reference tokenizer library knows about every code point.

Never run by tests or CI; its output is committed.  Needs tokenizers (pip install tokenizers==0.22.2):

    python3 tools/make_unicode_tables.py [--check] [--out text/tokenizer/unicode_table.inc]

The tables come from the library's answers, not from a Unicode file, since its parts (its regular expressions, its language's own
properties, its normalizer) each follow a version of Unicode of their own:

  general categories   Split with \\p{Lu} and its like
  numeric              Digits: what the pre-tokenizer of that name takes for a digit
  word                 what an added token with single_word may not touch
  combining classes    the order in which NFD puts two marks
  decompositions       NFD of each character; compositions: NFC of the same
"""
import argparse
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CODES))
CATEGORIES = ("Cn Cc Cf Co Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp").split()
HANGUL = range(0xAC00, 0xAC00 + 11172)
MARK_CLASSES_MAX = 64  # six bits in unicode_internal.h


def matched(pattern):
    """The code points of all those that a pattern of one character matches."""
    kept = set()
    for _, (begin, end) in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(ALL):
        kept.update(range(begin, end))
    return {c for i, c in enumerate(CODES) if i not in kept}


def categories():
    """The category of each code point; surrogates count as unassigned."""
    found = {}
    for number, name in enumerate(CATEGORIES):
        if name != "Cn":
            for code in matched(r"\p{%s}" % name):
                assert code not in found
                found[code] = number
    return found


def numeric():
    """A digit stands alone, even after a letter."""
    text = "".join("a" + chr(c) for c in CODES)
    parts = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(text)
    return {CODES[begin // 2] for _, (begin, end) in parts if end - begin == 1 and begin % 2 == 1}


def word():
    """A token with single_word between spaces is found after any character that belongs to no word."""
    tokenizer = Tokenizer(models.BPE({"x": 0}, [], unk_token="x", fuse_unk=True))
    tokenizer.add_tokens([AddedToken("\U0010FFFE", single_word=True, normalized=False)])
    text = "".join(chr(c) + "\U0010FFFE " for c in CODES if c != 0x10FFFE)
    encoding = tokenizer.encode(text)
    after = {begin - 1 for i, (begin, _) in zip(encoding.ids, encoding.offsets) if i == 1}
    codes = [c for c in CODES if c != 0x10FFFE]
    return {c for i, c in enumerate(codes) if 3 * i not in after}


def combining_classes():
    """Ranks that sort as combining classes do: 0 for a starter, then 1, 2, ... in their order."""
    nfd = normalizers.NFD().normalize_str
    low, high = "\u0334", "\u0345"  # classes 1 and 240, the lowest and the highest
    decomposed = {c for c in CODES if nfd(chr(c)) != chr(c)}
    marks = set()
    for code in CODES:
        if code not in decomposed:
            mark = chr(code)
            if nfd(mark + low) != mark + low or nfd(high + mark) != high + mark or mark == high:
                marks.add(code)
    # Two marks are of one class if neither order is changed.
    classes = []
    for code in sorted(marks):
        mark = chr(code)
        for same in classes:
            other = chr(same[0])
            if nfd(mark + other) == mark + other and nfd(other + mark) == other + mark:
                same.append(code)
                break
        else:
            classes.append([code])
    lower = {same[0]: sum(nfd(chr(same[0]) + chr(o[0])) != chr(same[0]) + chr(o[0]) for o in classes) for same in classes}
    classes.sort(key=lambda same: lower[same[0]])
    assert len(classes) < MARK_CLASSES_MAX
    return {code: rank + 1 for rank, same in enumerate(classes) for code in same}


def decompositions():
    """(full decompositions, pairs that compose); Hangul syllables follow from arithmetic."""
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    full, pairs = {}, {}
    for code in CODES:
        character = chr(code)
        parts = nfd(character)
        if parts == character or code in HANGUL:
            continue
        full[code] = parts
        head = nfc(parts[:-1])
        if nfc(parts) == character and len(parts) > 1:
            assert len(head) == 1
            pairs[ord(head), ord(parts[-1])] = code
    return full, pairs


def runs(values, shift):
    """The table of (first code point << shift | value) where the value changes."""
    rows, last = [], None
    for code in range(0x110000):
        value = values.get(code, 0)
        if value != last:
            rows.append(code << shift | value)
            last = value
    return rows


def table(out, name, comment, rows):
    out.append(f"/* {comment} */")
    out.append(f"static const uint32_t {name}[] = {{")
    line = "   "
    for row in rows:
        word_text = f" 0x{row:x},"
        if len(line) + len(word_text) > 128:
            out.append(line)
            line = "   "
        line += word_text
    out.append(line)
    out.append("};")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="text/tokenizer/unicode_table.inc")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    full, pairs = decompositions()
    out = [
        f"/* Written by tools/make_unicode_tables.py from the answers of tokenizers {tokenizers.__version__}; not edited by hand. */",
    ]
    table(out, "category_runs", "first code point << 5 | general category, to the next row", runs(categories(), 5))
    table(out, "numeric_runs", "first code point << 1 | numeric", runs({c: 1 for c in numeric()}, 1))
    table(out, "word_runs", "first code point << 1 | part of a word", runs({c: 1 for c in word()}, 1))
    table(out, "space_runs", "first code point << 1 | white space", runs({c: 1 for c in matched(r"\s")}, 1))
    table(out, "mark_runs", "first code point << 8 | rank of the combining class, 0: a starter", runs(combining_classes(), 8))
    rows = []
    for code, parts in sorted(full.items()):
        rows += [code << 3 | len(parts)] + [ord(p) for p in parts]
    table(out, "decomposition_rows", "code point << 3 | count, then count code points; ascending", rows)
    rows = []
    for (first, second), code in sorted(pairs.items()):
        rows += [first, second, code]
    table(out, "composition_rows", "first, second, what they compose to; ascending", rows)
    text = "\n".join(out) + "\n"
    if arguments.check:
        same = open(arguments.out).read() == text
        print(f"{arguments.out}: {'as the reference says' if same else 'differs'}")
        sys.exit(0 if same else 1)
    open(arguments.out, "w").write(text)


main()
