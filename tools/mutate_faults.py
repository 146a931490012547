"""What tools/mutate.py knows of C: the functions of a file, and the faults that can be drawn in them."""
import re


def functions(text):
    """(name, first line, last line) of each function: the project's format has its braces alone in the first column."""
    lines, first, found = text.split("\n"), None, []
    for number, line in enumerate(lines):
        if line == "{" or (line.endswith(") {") and line[0] not in " \t#"):
            first = number
        elif line.startswith("}") and first is not None:
            head = first
            while head > 0 and lines[head - 1].strip() and lines[head - 1][0] not in "}#/*{" and not lines[head - 1].rstrip().endswith((";", "*/")):
                head -= 1
            names = re.findall(r"(\w+)\s*\(", " ".join(lines[head:first + 1]))
            names = [name for name in names if not name.startswith("__")]
            if names:
                found.append((names[0], head + 1, number + 1))
            first = None
    return found


def function_at(spans, line):
    return next((name for name, first, last in spans if first <= line <= last), "")


def masked(text):
    """The text with comments, strings, characters and preprocessor lines blanked, every place as it was."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S | re.M)


def closing(line, at):
    """The place of the bracket that closes the one at a place, on the same line; -1 without."""
    depth = 0
    for place in range(at, len(line)):
        depth += (line[place] in "([") - (line[place] in ")]")
        if depth == 0:
            return place
    return -1


def swaps(pairs):
    return {**pairs, **{b: a for a, b in pairs.items()}}


TOKENS = {
    "boundary": (r"(?<= )(<=|>=|<|>)(?= )", swaps({"<": "<=", ">": ">="})),
    "equal": (r"(?<= )(==|!=)(?= )", swaps({"==": "!="})),
    "logic": (r"(?<= )(&&|\|\|)(?= )", swaps({"&&": "||"})),
    "sum": (r"(?<= )([+-]=?)(?= )", swaps({"+": "-", "+=": "-="})),
    "product": (r"(?<=[\w)] )([*/])(?= [\w(])", swaps({"*": "/"})),
    "extreme": (r"\b(?:\w+_)?(min|max)(?:_\w+)?(?=\()", swaps({"min": "max"})),
    "break": (r"\b(break|continue)(?=;)", {"break": "(void)0", "continue": "(void)0"}),
}
KINDS = (*TOKENS, "constant", "negated", "dropped", "return", "swapped")
STATEMENT = r"\s+(?:[\w.>\[\]-]+\(.*\)|\*?[\w.>\[\]-]+ [-+*/|&]?= .*|[\w.>\[\]-]+(?:\+\+|--));$"


def faults_of_line(line, before):
    """(operator, first, last, text) of each fault of a masked line; before is the last line above it that is not blank."""
    for name, (pattern, become) in TOKENS.items():
        for match in re.finditer(pattern, line):
            yield name, match.start(1), match.end(1), become[match[1]]
    for match in re.finditer(r"(?<![\w.])(\d+)(?=[uU]?[lL]*\b)(?![\w.]*[.xX])", line):
        for step in (-1, 1):
            if int(match[1]) + step >= 0:
                yield "constant", match.start(1), match.end(1), str(int(match[1]) + step)
    for match in re.finditer(r"\b(?:if|while) \(", line):
        end = closing(line, match.end() - 1)
        if end > 0:
            yield "negated", match.end(), end, f"!({line[match.end():end]})"
    begins = before.endswith((";", "{", "}", ":", " else")) or re.match(r"\s*(?:if|for|while) \(.*\)$", before)
    if begins and re.match(STATEMENT, line) and line.count("(") == line.count(")") and not re.match(r"\s+(?:return|assert|goto)\b", line):
        yield "dropped", len(line) - len(line.lstrip()), len(line), "(void)0;"
    if before.endswith(")") and re.match(r"\s+return\b.*;$", line):
        yield "return", len(line) - len(line.lstrip()), len(line), "(void)0;"
    for match in re.finditer(r"\b(?!if|for|while|switch|sizeof|return)\w+\(", line):
        end = closing(line, match.end() - 1)
        words = line[match.end():end].split(", ") if end > 0 else []
        for at, (one, two) in enumerate(zip(words, words[1:])):
            if one != two and all(re.fullmatch(r"[&*]?[A-Za-z_][\w.>\[\]-]*", word) and word != "NULL" for word in (one, two)):
                yield "swapped", match.end(), end, ", ".join([*words[:at], two, one, *words[at + 2:]])


def faults_of_file(text):
    """{line: [(operator, first, last, text)]} of all function bodies; lines count from 0."""
    plain, lines = masked(text).split("\n"), text.split("\n")
    found = {}
    for _, first, last in functions(text):
        before = "{"
        for number in range(first, last - 1):
            line = plain[number].rstrip()
            if number > first and line.strip() and plain[first - 1] != line:
                faults = [f for f in faults_of_line(line, before) if not lines[number].lstrip().startswith("assert(")]
                # What was blanked inside a rewritten part would be lost.
                faults = [f for f in faults if f[3].startswith("(void)0") or lines[number][f[1]:f[2]] == plain[number][f[1]:f[2]]]
                if faults:
                    found[number] = faults
            before = line or before
    return found
