#!/usr/bin/env python3
"""Counts the words of Jinja that chat templates use: in how many of them each filter, test, function, method, operator and tag is.

    tools/count_template_words.py TEMPLATE.jinja... > tests/text/template_words.tsv

Templates of the same text count once.  tests/text/test_template.c holds the interpreter to the table.
"""
import collections
import sys

import jinja2
from jinja2 import ext, nodes

SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "in": "in", "notin": "not in"}
TAGS = {"If": "if", "For": "for", "Assign": "set", "AssignBlock": "set", "Macro": "macro", "CallBlock": "call", "Break": "break",
        "Continue": "continue"}
TESTED = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}  # which argument names a test


class Generation(ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.FilterBlock(body, nodes.Filter(None, "generation", [], [], None, None), lineno=line)


def words(tree):
    own = {n.name for n in tree.find_all(nodes.Macro)} | {n.name for n in tree.find_all(nodes.Name) if n.ctx == "store"}
    for n in tree.find_all(nodes.Node):
        kind = type(n).__name__
        if kind == "FilterBlock":
            yield "tag", "generation" if n.filter.name == "generation" else "filter"
        elif kind == "Filter" and n.name != "generation":
            yield "filter", n.name
            named = TESTED.get(n.name, 0)
            if n.name in TESTED | {"map": 0} and len(n.args) > named and isinstance(n.args[named], nodes.Const):
                yield "filter" if n.name == "map" else "test", n.args[named].value
        elif kind == "Test":
            yield "test", n.name
        elif kind == "Call" and isinstance(n.node, nodes.Getattr):
            yield "method", n.node.attr
        elif kind == "Call" and isinstance(n.node, nodes.Name) and n.node.name not in own | {"caller"}:
            yield "function", n.node.name
        elif kind == "Operand":
            yield "operator", SIGNS[n.op]
        elif isinstance(n, nodes.BinExpr):
            yield "operator", n.operator
        elif kind == "Concat":
            yield "operator", "~"
        elif kind == "Getattr" and isinstance(n.node, nodes.Name) and n.node.name == "loop":
            yield "loop", n.attr
        elif kind in TAGS:
            yield "tag", TAGS[kind]


def main():
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    texts = {open(path, encoding="utf-8").read().strip() for path in sys.argv[1:]}
    counts = collections.Counter(word for text in texts for word in set(words(env.parse(text))))
    print(f"# {len(texts)} templates")
    for (kind, word), count in sorted(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1])):
        print(f"{kind}\t{word}\t{count}")


main()
