#!/usr/bin/env python3
"""Make text/template/case_table.inc: upper, lower and title case of every letter outside ASCII, as Python's str has them.

Never run by tests or CI; its output is committed:

    python3 tools/make_case_table.py [--check] [--out text/template/case_table.inc]
"""
import argparse
import sys
import unicodedata

CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def single_and_several(mapping):
    """Characters that become another one, and those that become up to three."""
    single, several = {}, {}
    for code in CODES:
        text = mapping(chr(code))
        if len(text) > 1:
            several[code] = [ord(c) for c in text] + [0] * (3 - len(text))
        elif text != chr(code):
            single[code] = ord(text)
    return single, several


def steps(single):
    """Runs of characters, each 1 or 2 after the one before, whose distance to what they become is the same."""
    rows = []
    for code, to in sorted(single.items()):
        if rows:
            first, last, step, delta = rows[-1]
            if to - code == delta and code - last in (1, 2) and (first == last or code - last == step):
                rows[-1] = (first, code, code - last, delta)
                continue
        rows.append((code, code, 1, to - code))
    return rows


def sigma_flags(code):
    """1: a letter that has case; 2: a mark that a final sigma does not see (The Unicode Standard, section 3.13)."""
    if 0xD800 <= code < 0xE000:
        return 0
    cased = ("." + chr(code) + "\u03a3").lower()[-1] == "\u03c2"
    ignored = ("a" + chr(code) + "\u03a3").lower()[-1] == "\u03c2" and not cased
    return cased | ignored << 1


def table(out, declaration, cells):
    out.append(f"static const {declaration} = {{")
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 128:
            out.append(line)
            line = "   "
        line += f" {cell},"
    out += [line, "};"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="text/template/case_table.inc")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    out = [
        f"/* Written by tools/make_case_table.py from Python's answers (Unicode {unicodedata.unidata_version}); not edited by hand. */"
    ]
    for name, mapping in [("upper", str.upper), ("lower", str.lower)]:
        single, several = single_and_several(mapping)
        table(out, f"struct case_run {name}_runs[]", ["{0x%x, 0x%x, %d, %d}" % row for row in steps(single)])
        table(out, f"struct case_whole {name}_wholes[]", ["{0x%x, {0x%x, 0x%x, 0x%x}}" % (c, *to) for c, to in several.items()])
    title = {c: [ord(x) for x in t] for c in CODES if len(t := chr(c).title()) > 1 or t != chr(c).upper()}
    rows = ["{0x%x, {0x%x, 0x%x, 0x%x}}" % (c, *(to + [0, 0])[:3]) for c, to in title.items()]
    out.append("/* several, and one where it is not upper case */")
    table(out, "struct case_whole title_wholes[]", rows)
    flags, last = [], None
    for code in range(0x110000):
        value = sigma_flags(code)
        if value != last:
            flags.append("0x%x" % (code << 2 | value))
            last = value
    out.append("/* first code point << 2 | a mark that is ignored << 1 | a letter with case, to the next row */")
    table(out, "uint32_t sigma_runs[]", flags)
    text = "\n".join(out) + "\n"
    if arguments.check:
        same = open(arguments.out).read() == text
        print(f"{arguments.out}: {'as Python says' if same else 'differs'}")
        sys.exit(0 if same else 1)
    open(arguments.out, "w").write(text)


main()
