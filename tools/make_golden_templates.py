#!/usr/bin/env python3
"""Writes tests/text/templates_golden.json: templates, conversations and what transformers renders of them.

    tools/make_golden_templates.py RENDER > tests/text/templates_golden.json

RENDER is build/*/tests/text/render_template, which is asked for the texts of the built-in templates alone.
Written with transformers 5.24.0, Jinja2 3.1.6.
"""
import json
import subprocess
import sys

from transformers.utils import chat_template_utils

TALK = [
    {"role": "system", "content": " Be kind. "},
    {"role": "user", "content": "Grüße\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n\"Yes\" 日本 🙂", "reasoning_content": "so"},
    {"role": "user", "content": "it's 2"},
]
SHORT = [{"role": "user", "content": "hi"}]
PAIR = SHORT + [{"role": "assistant", "content": " ok "}]
TOOLS = {"tools": [{"name": "f", "parameters": {"b": [1, True, None, 2.5], "a": {}, "c": "é\n\"", "e": []}}], "n": 7}

# White space.
SPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\n  c\n",
    "a {%- if true -%}  b  {%- endif -%} c",
    "a\n  {%+ if true %}\nb\n  {%+ endif +%}\nc",
    "{{ 'x' }}  {% if true %}y{% endif %}\n{# note #}\n  {#- note -#}  z",
    "a\r\nb\rc\n\n",
    "{% raw %}{{ x }} {% y %}{% endraw %}|{%- raw -%}  z  {%- endraw %}",
    "  {{- ' a ' -}}  b\n",
    "{% for x in [1,2] %}\n    {{ x }}\n{% endfor %}\n\n",
    "x\u00a0\u3000{%- set a = 1 %}\n y",
    "{{ messages | length }}\n{# a\nb #}\n\nc",
]
# Expressions: each is printed.
VALUES = """1 + 2 * 3 - 4
7 % 3, -7 % 3, 7 / 2
1.5 + 1, 1e3, 2.0 * 3, 1 / 3, 1e16, 123456789.0, 1e-5, 0.0001
-(3), +4, - 1 | string
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, 'a' < 'b', [1, 2] < [1, 3]
not true or true and false, none or 'x', 'a' and 'b', '' or []
'a' ~ 1 ~ none ~ true, 'a' 'b' "c", 'a' + 'b', 'ab' * 2, [1] + [2], (1,) + (2,)
'x' if 1 else 'y', 'x' if 0, ('x' if false else 'y') ~ 'z'
'ell' in 'hello', 3 in [1, 2], 3 not in [1, 2], 'role' in messages[0], 'x' in none_such
messages[0].role, messages[0]['role'], messages[-1].content, messages[9], messages[0].none_such
'héllo'[1], 'héllo'[-2:], 'héllo'[::-1], 'héllo'[1:4:2], 'abc'[5:], 'abc'[:-5], [1, 2, 3, 4][1:-1], [1, 2, 3, 4][::-2], (1, 2, 3)[1:]
{'a': 1, 'b': [1, 'x']}, [], (), (1,), {'k': none}, ['it\\'s', 'a"b', 'é\\n\\t\\x01', "\\\\"]
'a\\x41\\u00e9\\101\\q', "don't", 'tab\\t'
messages is defined, none_such is defined, none_such is undefined, none is none, 1 is none, not 1 is none, 1 is not none
1 is number, true is number, 1.0 is float, 1 is integer, true is integer, 'a' is string, {} is mapping, [] is mapping, [] is sequence, 'a' is sequence, 1 is iterable, none_such is iterable, true is boolean, true is true, 1 is true, false is false
3 is odd, 4 is even, 2 is eq 2, 2 is ne 2, 1 is lt 2, 1 is in [1], 'a' is equalto 'a', 5 is ge(5)
'Abc' | upper, 'ABC' | lower, 'aBC dEF-gh' | title, 'aBC' | capitalize, ' a ' | trim | length, 'xxaxx' | trim('x')
'Éé Ёж 日' | upper, 'É'.lower(), 'éA'.capitalize(), ['é', 'É', 'b', 'A'] | sort, ['é', 'É'] | unique | list
[1, 2] | join, ['a', 2, none] | join(', '), messages | join('|', attribute='role'), 'abc' | join('-')
[3, 1, 2] | sort, ['b', 'A', 'c'] | sort, ['b', 'A'] | sort(case_sensitive=true), [1, 2] | sort(reverse=true), messages | sort(attribute='role') | map(attribute='role') | list
['b', 'B', 'a', 'A'] | sort, ['b', 'B', 'a', 'A'] | sort(reverse=true), ['b', 'B', 'a', 'A'] | sort(reverse=true, case_sensitive=true), messages | sort(attribute='role', reverse=true) | map(attribute='content') | list, {'b': 1, 'a': 1, 'c': 0} | dictsort(by='value', reverse=true), {'B': 1, 'a': 2, 'b': 3} | dictsort(reverse=true)
['b', 'B', 'a', 'A', 'c', 'C'] | min, ['b', 'B', 'a', 'A', 'c', 'C'] | max, ['b', 'B', 'a', 'A'] | unique | list, ['b', 'B'] | unique(case_sensitive=true) | list, messages | min(attribute='role'), [] | min, [3, 1, 1.0, 2] | unique | list
[1, 2, 3] | first, [1, 2, 3] | last, [1, 2] | reverse | list, 'abc' | reverse, 'ab' | list, {'a': 1} | list
{'b': 1, 'a': 2} | dictsort, {'b': 1, 'a': 2} | dictsort(by='value'), {'b': 1} | items | list, {'a': 1}.items() | list, {'a': 1}.keys() | list, {'a': 1}.values() | list
messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list, messages | rejectattr('role', 'in', ['user']) | list | length, [1, 0, 2] | select | list, [1, 2, 3] | reject('odd') | list, [1, 2] | select('>', 1) | list, none | select | list, none | map('upper') | list
['a', 'b'] | map('upper') | list, [' a '] | map('trim') | list, messages | map(attribute='reasoning_content', default='-') | list
none_such | default('d'), '' | default('d'), '' | default('d', true), none | default('d'), none_such | d(1)
'5' | int, '5.9' | int, 'x' | int, 'x' | int(3), 2.9 | int
[1, 3, 2] | max, [1, 3, 2] | min, ['b', 'A', 'b'] | unique | list, 3 | string, none | string, 'a\\nb' | indent(2), 'a\\n\\nb' | indent(2, true)
'a,b,,c'.split(','), 'a b  c '.split(), 'a,b,c'.split(',', 1), 'x'.split('y'), ' a b c'.split(none, 1)
' a b  '.split(none, 1)
' a '.strip(), 'xax'.strip('x'), 'xax'.lstrip('x'), 'xax'.rstrip('x'), 'é a é'.strip('é'), 'abc'.startswith('ab'), 'abc'.endswith(('x', 'c'))
'aXbX'.replace('X', '--'), 'aXbX'.replace('X', '', 1), 'a'.upper(), '-'.join(['a', 'b'])
{'a': {'b': 1}}.get('a').get('c'), {'a': 1}.get('x', 2), {'items': 3}['items']
n, tools | tojson, tools[0].parameters | tojson(indent=2), 'é"\\\\/\\n' | tojson, [] | tojson, {} | tojson(indent=1), none | tojson, 1.0 | tojson
range(3), range(1, 7, 2), range(3, 0, -1), [range(2)], range(10)[2:8:2], range(3)[::-1], range(9, 0, -2)[1:], range(3) ~ 'x', range(3) | string
range(3) == [0, 1, 2], range(0) == range(2, 2), range(3) | length, range(5)[1], 2 in range(3), range(2) is sequence, range(2) is iterable, range(0) or 1
{'a': 1, 'b': 2}.keys(), {'a': 1}.values(), {'a': 1, 'b': 'x'}.items(), {}.keys(), [{'a': 1}.keys()], {'a': 1}.keys() | length, {'a': 1}.keys() is sequence, {'a': 1}.items() is iterable
'a' in {'a': 1}.keys(), {'a': 1}.keys() == ['a'], {}.keys() or 1, {'a': 1}.keys()[0] is defined, {'a': 2}.items() | first, {'b': 1, 'a': 2}.keys() | sort, {'a': 1}.values() | join, {'a': 1}.items() ~ ''
range(3) | list, range(1, 7, 2) | list, range(3, 0, -1) | list, dict(a=1), dict({'x': 1}, y=2)
strftime_now('%d %b %Y'), strftime_now('%A, %B %d, %Y - %j %y-%m %%'), bos_token, eos_token, add_generation_prompt
loop is defined, messages.0.role
[2, 3, 1] | sort(true), ['b', 'B', 'A'] | sort(false, true), ['b', 'B', 'A'] | sort(true, true), messages | sort(false, false, 'role') | map(attribute='role') | list, messages | sort(true, true, 'role') | map(attribute='content') | list
{'b': 1, 'a': 3, 'B': 2} | dictsort(true), {'b': 1, 'a': 3, 'B': 2} | dictsort(false, 'value'), {'b': 1, 'a': 3, 'B': 2} | dictsort(false, 'value', true), {'b': 1, 'a': 3, 'B': 2} | dictsort(true, 'key', true), {'b': 'x', 'a': 'Y', 'c': 'z'} | dictsort(true, 'value')
['b', 'B', 'a'] | unique(true) | list, messages | unique(false, 'role') | map(attribute='content') | list, ['b', 'A', 'a'] | min(true), ['b', 'A', 'C'] | max(true), ['b', 'A', 'C'] | max(case_sensitive=true), messages | max(false, 'role'), messages | min(attribute='content', case_sensitive=true)
none_such | default(default_value='k'), '' | default(boolean=true, default_value='k'), '' | default('k', false), 0 | d('k', true), none | default('k', true), 'v' | default('k', true)
[1, 2] | join(d='+'), messages | join('-', 'role'), messages | join(attribute='role', d='/'), [] | join('-'), 'x' | join
'a\\nb' | indent(width=3, first=true, blank=true), 'a\\n\\nb' | indent(2, false, true), 'a\\n\\nb' | indent(1, true, true), 'a\\n\\nb\\n' | indent(first=true), 'a\\nb' | indent
'aaa' | replace('a', 'b', 2), 'aaa' | replace(old='a', new='b', count=1), 'aaa' | replace('aa', 'b'), 'xaax' | trim(chars='x'), '' | trim
'x' | int(default=4), ' 7 ' | int, '-7' | int, true | int, '0x1f' | int, 1e3 | int, '12abc' | int(5), 'nan' | int(6), '' | int(8), '1e400' | int(2)
'a,b,c'.split(sep=',', maxsplit=1), 'a b c'.split(maxsplit=1), 'a,b'.split(',', -1), 'a,b'.split(',', 0), ' a '.strip(none), 'aXbX'.replace('X', '-', 0), 'aXbX'.replace('X', '-', -1)
{'b': 1, 'a': {'c': 2}} | tojson(false, 2), {'b': [1, {}]} | tojson(indent=1), [[], [1]] | tojson(indent=0)
{'é🙂\x7f': ['日', '\u2028', "a'<"]} | tojson(ensure_ascii=true), {'b': [1, 2], 'a': {}} | tojson(separators=(',', ':')), [1, {'é': 2}] | tojson(true, 1, [';', '=']), messages | tojson(separators=(', ', ':'))
'user'.title(), "it's a3b x_y éa".title(), 'ABC dEF'.title(), ''.title()
('<a>'|safe) + '&<b>"' + "'", '<é>' + ('<a>'|safe), ('<a>'|safe) + '<' + ('>'|safe), ('<'|safe) ~ '<', ('a'|safe) + 'b' + '<'
dict(*[{'a': 1}]), range(*[1, 4]) | list, range(*(1, 9), ) | list, 'a-b'.replace(*['-', '+']), '5' | int(*[]), 'x'.split(*[], sep=',')
[1, 2, 3] | select('ge', 2) | list, [1, 2] | select('in', [2, 3]) | list, [{'a': 0}, {'a': 1}] | selectattr('a') | list, [{'a': 0}, {'a': 1}] | rejectattr('a') | list, [{'a': {'b': 1}}] | map(attribute='a.b') | list, [[1, 2]] | map(attribute=1) | list
[1, 2, 3] | map('string') | list, ['x', '2'] | map('int', 5) | list, ['a-b'] | map('replace', '-', '+') | list, [[1, 2], [3]] | map('join', '.') | list, [{}] | map(attribute='a', default=0) | list
1 is eq 2, 2 is eq 2, 3 is eq 2, 1 is ne 2, 2 is ne 2, 1 is lt 2, 2 is lt 2, 3 is lt 2, 1 is le 2, 2 is le 2, 3 is le 2, 1 is gt 2, 2 is gt 2, 3 is gt 2, 1 is ge 2, 2 is ge 2, 3 is ge 2
1 is in [2], 3 is even, 4 is odd, -3 is odd, 0 is even, false is false, false is true, 0 is false, 1 is true
[1, 2, 3, 4] | select('==', 2) | list, [1, 2, 3] | select('!=', 2) | list, [1, 2, 3] | select('<', 2) | list, [1, 2, 3] | select('<=', 2) | list, [1, 2, 3] | select('>', 2) | list, [1, 2, 3] | select('>=', 2) | list
1 == 1, 1 != 1, 1 < 1, 1 <= 1, 1 > 1, 1 >= 1, 2 <= 1, 2 >= 1, 'b' > 'a', 'a' >= 'b', 1.5 > 1, 1 < 1.5, true < 2, [1] == [1], [1, 2] > [1], (1, 2) < (1, 3), {'a': 1} == {'a': 1.0}, {'a': 1} != {'b': 1}, 'a' == 1, none == false
'ab'.startswith('b'), 'ab'.startswith(('x', 'a')), 'ab'.endswith('a')
{'a': none}.get('a', 2), {'a': 1}.get('b') is none, {'a': 1}.items() | map('first') | list, {'a': 1, 'b': 2} | length, {'a': 1, 'b': 2} | first, 'abc' | first, 'abc' | last, [] | first is defined
7 % -3, -7 % -3, 1 - -1, 3 - 2 - 1, 8 / 4 * 2, 'a' * 0, 3 * [0]
range(5, 0), range(0, 5, 10), range(-3), range(5, -1, -2) | list, range(4)[-1], range(4)[1:3] | list, range(2, 8, 3) | list | length, 5 in range(0, 9, 2), 6 in range(0, 9, 2)
[1, 2, 3, 4][-3:-1], [1, 2, 3, 4][::2], [1, 2, 3, 4][3:0:-1], [1, 2, 3, 4][-9:9], [1, 2][2:], 'abc'[-1], 'abc'[::-2], (1, 2, 3)[-2:], [1, 2, 3][1:][0], 'abcd'[3:1:-1]
""".strip().split("\n")
# Statements.
STATEMENTS = [
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.previtem.role if not loop.first }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %} x{{ a }} {% endset %}[{{ c }}]{% set d | upper | trim %} y {% endset %}[{{ d }}]",
    "{% if none_such %}a{% elif messages %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}{% if 1 %}d{% endif %}{% endif %}",
    "{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{{ n }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m('x', 'y') }}|{{ m() }}",
    "{% macro deep(n) %}{{ n }}{% if n > 0 %}{{ deep(n - 1) }}{% endif %}{% endmacro %}{{ deep(5) }}{{ deep(2) | length }}",
    "{% macro s(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ s(*[1, 2]) }}|{{ s(1, *[2], c=3) }}|{{ [s][0](*[messages[0].role]) }}",
    "{% macro s(a) %}<{{ a }}{{ caller() }}{{ caller() | upper }}>{% endmacro %}{% for x in 'ab' %}{% call s(x) %}{{ x }}{{ loop.index }}"
    "{% call s('in') %}{{ x }}!{% endcall %}{% endcall %}{% endfor %}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for x in [[1, 2], [3, 4]] %}{% for y in x %}{{ y }}{% endfor %}{% endfor %}",
    "{%- set messages = messages[1:] %}{% for m in messages %}{{ m.role }}{% endfor %}",
    "{% for v in [none, true, 1, 1.5, 'x', [1], (1,), {'a': 1}, range(2), {'a': 1}.keys(), {'a': 1}.get, none_such, strftime_now, namespace()] %}"
    "{{ v is defined }}{{ v is none }}{{ v is boolean }}{{ v is integer }}{{ v is float }}{{ v is number }}{{ v is string }}"
    "{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}{{ v is true }}{{ v is false }}{{ v is undefined }};{% endfor %}",
    "{% for a in [1, 2, 3] %}{% for b in 'xy' %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.last }}{% endfor %}{{ loop.index0 }}"
    "{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{% if loop.first %}<{% endif %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'user' and loop.index0 > 0 %}{% continue %}{% elif loop.last %}{% break %}{% endif %}{{ ns.n }}{% if loop.last %}>{% endif %}{% endfor %}{{ ns.n }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1, b=3) }} {{ m(b=1, a=2) }} {{ m(1, 2, 3) }} {{ m(c=9) }}",
    "{% if false %}a{% elif false %}b{% elif true %}c{% elif true %}d{% else %}e{% endif %}{% if false %}{% else %}f{% endif %}",
    "{% set x = 'a' if false else 'b' if false else 'c' %}{{ x }}{% set y %}{{ x }}{{ x }}{% endset %}{{ y | length }}{{ (1 if false) is defined }}",
]
# What both refuse.
REFUSED = [
    "{{ raise_exception('no ' ~ n) }}", "{{ none_such.x }}", "{{ none_such['x'] }}", "{{ 1 + 'a' }}", "{{ none_such + 'a' }}",
    "{{ 1 / 0 }}", "{{ [1] < 2 }}", "{{ none_such() }}", "{{ messages.append(1) }}", "{{ {'a': 1}.update({}) }}",
    "{% for a, b in [[1]] %}{% endfor %}", "{% if x %}", "{{ 'a }}", "{{ a b }}", "{% endif %}", "{% for %}", "{# x", "{{ }}",
    "{% set x = %}", "{% unknown %}", "{{ (1 }}", "{{ [1 }}", "{{ 'x' | none_such }}", "{{ 1 is none_such }}", "{{ n[1:2] }}",
    "{{ none_such | tojson }}", "{{ 1 ~ 2 + 3 }}", "{{ 1 + 2 ~ 3 }}", "{{ range(200000) }}", "{{ range(2) + [1] }}", "{{ range(2) * 2 }}", "{{ range(3) | tojson }}", "{{ {'a': 1}.keys() | tojson }}", "{{ {'a': 1}.keys() + [1] }}", "{{ {'a': 1}.keys()[1:] }}", "{% set m.x = 1 %}",
]
# Numbers stay what they are in JSON: a whole float is no integer, and an integer is exact.
NUMBERS = {"tools": [{"parameters": {"default": 1.0, "minimum": -0.0, "maximum": 1e22, "step": 0.5, "big": 9007199254740993,
                                     "least": -2**63, "most": 2**63 - 1, "edge": 2**53, "zero": 0}}], "n": 3.0}
BUILTINS = ["alpaca", "chatml", "gemma", "llama2", "llama3", "mistral", "qwen"]


class Date(chat_template_utils.datetime):
    @classmethod
    def now(cls):
        return cls(2026, 2, 3)


def render(text, messages, variables, prompt):
    try:
        template = chat_template_utils._compile_jinja_template(text)
        given = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **variables}
        messages = chat_template_utils._alias_reasoning_fields(chat_template_utils._normalize_chat_messages(messages))
        return template.render(messages=messages, add_generation_prompt=prompt, **given)
    except Exception:
        return None


def main():
    chat_template_utils.datetime = Date
    cases = []

    def add(text, messages, variables=None, prompt=False, builtin=None, refused=False):
        variables = variables or {}
        out = render(text, messages, variables, prompt)
        assert (out is None) == refused, (text, out)
        cases.append({"builtin": builtin} if builtin else {"template": text})
        cases[-1].update(messages=messages, variables=variables, add_generation_prompt=prompt, text=out)

    for text in SPACE + STATEMENTS:
        add(text, TALK, TOOLS)
    add("{{ tools | tojson }}{{ n }}{{ n is float }}{{ n + 1 }}{{ messages[0] | tojson }}", [dict(SHORT[0], x=[2.0, 2, 1e2])], NUMBERS)
    for line in VALUES:
        add("{{ [" + line + "] | map('string') | join('\u00a6') }}", TALK, TOOLS)
    for text in REFUSED:
        add(text, TALK, TOOLS, refused=True)
    for name in BUILTINS:
        text = subprocess.run([sys.argv[1], "--builtin", name], capture_output=True, check=True, text=True).stdout
        for messages in [TALK, TALK[1:], SHORT, PAIR]:
            add(text, messages, None, messages[-1]["role"] == "user", builtin=name)
        if name in ("alpaca", "gemma", "llama2", "mistral"):
            add(text, SHORT + SHORT, None, False, builtin=name, refused=True)
    json.dump(cases, sys.stdout, ensure_ascii=False, indent=0)
    print()


main()
