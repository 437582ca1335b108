"""The sandbox: what a template can use, and that none of it gets out of bounds."""

from __future__ import annotations

from datetime import datetime

import pytest

from lmhub.chat.budget import MAX_SOURCE
from lmhub.chat.template import ChatTemplate, TemplateRefused
from lmhub.chat.traced import segments, written
from lmhub.errors import ModelFileError, RequestError


def render(source, /, **variables):
    return ChatTemplate(source, now=lambda: datetime(2024, 2, 3)).render(variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if 1 %}\n  a\n  {% endif %}\nb", "  a\nb"),  # trim_blocks, lstrip_blocks
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}"
            "{% endfor %}",
            "023",
        ),
        ("{% generation %}a{{ x }}{% endgeneration %}b", "a<1>b"),
        ("{{ {'b': '<é>', 'a': [1, 2.5, none, true]} | tojson }}", '{"b": "<é>", "a": [1, 2.5, null, true]}'),
        ("{{ {'b': 1} | tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{{ d | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":[],"k":"v"}'),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2024"),
        ("{% for k, v in d | items %}{{ k }}{{ v }}{% endfor %}{{ d.get('no', 'yes') }}", "kva[]yes"),
        ("{% for k, v in d | dictsort %}{{ k }}{{ loop.last }}{% endfor %}", "aFalsekTrue"),
        ("{{ m[::-1][0].r }}{{ m[1:] | length }}{{ (m | map(attribute='r') | list) }}", "21['1', '2']"),
        ("{{ m | selectattr('r', 'equalto', '2') | list | length }}{{ 'a' in 'ba' }}{{ 3 not in [1] }}", "1TrueTrue"),
        ("{{ ' a b '.strip().split(' ') | join('-') }}{{ 'x'.startswith('x') }}{{ 'a' ~ 1 ~ none }}", "a-bTruea1None"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        (
            "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) | trim }}"
            "{% set s %}q{{ f(3, 4) }}{% endset %}{{ s }}",
            "12q34",
        ),
        ("{{ 'a\nb' | indent(2) }}|{{ '%s-%02d' % ('a', 5) }}|{{ '{}{n}'.format('b', n=1) }}", "a\n  b|a-05|b1"),
        ("{% for i in range(4) if i is odd %}{{ i }}{{ loop.length }}{% endfor %}", "1232"),
        (
            "{{ x | e }}{{ x | safe }}{{ no | default('d') }}{{ no is defined }}{{ x is string }}",
            "&lt;1&gt;<1>dFalseTrue",
        ),
        ("{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ 'ab' * 2 }}{{ [1] + [2] }}{{ 1 < 2 < 3 }}", "338abab[1, 2]True"),
        ("{% call(a) g() %}{{ a }}{% endcall %}{% macro g() %}<{{ caller(1) }}>{% endmacro %}", None),
        ("{% filter upper %}a{{ x }}{% endfilter %}{% with y = 1 %}{{ y }}{% endwith %}", "A<1>1"),
    ],
)
def test_language(source, text):
    variables = {"x": "<1>", "d": {"k": "v", "a": []}, "m": [{"r": "1"}, {"r": "2"}]}
    if text is None:
        with pytest.raises(TemplateRefused):
            render(source, **variables)
    else:
        assert render(source, **variables) == text


@pytest.mark.parametrize(
    "source",
    [
        "<a>{{ x }}</a>",
        "{{ '<a>' + x + '</a>' }}",
        "{{ '<a>' ~ x ~ '</a>' }}",
        "{% macro f(t) %}{{ '<a>' + t }}{{ '</a>' }}{% endmacro %}{{ f(x) | trim }}",
        "{% set ns = namespace(s='') %}{% set ns.s = ns.s + '<a>' + x %}{{ ns.s }}</a>",
        "{% set t %}<a>{{ x }}</a>{% endset %}{{ t | string | safe }}",
        "{{ ['<a>', x, '</a>'] | join }}",
        "{{ ''.join(['<a>', x, '</a>']) }}",
        "{{ '<a>%s</a>' % x }}{{ '%s' | format('') }}",
        "{{ '<a>{}</a>'.format(x) }}",
        "{{ '<a>|</a>'.replace('|', x) }}",
        "{{ '<a>|</a>' | replace('|', x) }}",
        "{{ '  <a>'.lstrip() }}{{ x }}{{ '</a>.'[:-1] }}",
        "{{ '<A>' | lower }}{{ x }}{{ ('</a>' if x else '') }}",
    ],
)
def test_markup_stays_markup_and_text_stays_text(source):
    assert segments(render(source, x="<a>")) == (("<a>", True), ("<a>", False), ("</a>", True))


@pytest.mark.parametrize(
    "source", ["{{ x }}", "{{ x | upper }}", "{{ {'a': x} | tojson }}", "{{ [x] }}", "{{ '%s' % x }}"]
)
def test_what_comes_from_outside_is_never_markup(source):
    assert "<" not in "".join(text for text, markup in segments(render(source, x="<a>")) if markup)


def test_given_markup_is_markup():
    assert segments(render("{{ bos }}{{ x }}", bos=written("<s>"), x="<s>")) == (("<s>", True), ("<s>", False))


BIG = "{% set x = 'ab' * 4000000 %}"
GROW = "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(100) %}"
BOMBS = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "text times": "{{ 'a' * 10**9 }}",
    "times text": "{{ 10**9 * 'a' }}",
    "doubled text": GROW.replace("[1]", "'a'") + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled text by ~": GROW.replace("[1]", "'a'") + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled list": GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled number": GROW.replace("[1]", "3") + "{% set ns.s = ns.s * ns.s %}{% endfor %}",
    "printed nest": GROW + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "dumped nest": GROW + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
    "compared nests": GROW + "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
    "searched nests": GROW
    + "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s in [ns.t] }}",
    "power": "{{ 9 ** 999999999 }}",
    "padding": "{{ 'a'.ljust(10**9) }}",
    "zeros": "{{ 'a'.zfill(10**9) }}",
    "rounding": "{{ 5 | round(-10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "json indent": "{{ [1] | tojson(indent=10**9) }}",
    "macro": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "block set": "{% set x %}{% for i in range(99999) %}" + "a" * 99 + "{% endfor %}{% endset %}",
    "output": BIG + "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "split": BIG + "{{ x.split('a') | length }}",
    "list": BIG + "{{ x | list | length }}",
    "replace": BIG + "{{ x | replace('a', x) }}",
    "replace method": BIG + "{{ x.replace('a', x) }}",
    "join": BIG + "{{ x.join(['b'] * 1000) }}",
    "join filter": BIG + "{{ ([x] * 1000) | join }}",
    "search": BIG + "{% for i in range(99999) %}{{ 'ba' * 400 ~ 'c' in x }}{% endfor %}",
    "comparison": BIG + "{% for i in range(99999) %}{{ x == x[1:] }}{% endfor %}",
    "slices": BIG + "{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "methods": BIG + "{% for i in range(99999) %}{% set y = x.upper() %}{% endfor %}",
    "map": BIG + "{{ ([x] * 99999) | map('upper') | list | length }}",
    "sort": BIG + "{{ ([x] * 99999) | sort | length }}",
    "dictionaries": "{% set ns = namespace(d={}) %}{% for i in range(99999) %}"
    "{% set ns.d = dict(ns.d, **{i | string: 1}) %}{% endfor %}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_one_sentence(name):
    with pytest.raises(RequestError, match="does not come to an end within its limits") as caught:
        render(BOMBS[name])
    assert not isinstance(caught.value, TemplateRefused)  # no other arrangement of the messages is tried


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'].x }}",
        "{{ [].__class__.__base__.__subclasses__() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range.__globals__.x }}",
        "{{ strftime_now.__closure__.x }}",
        "{% for i in [1] %}{{ loop.__class__.x }}{% endfor %}",
        "{% for i in [1] %}{{ loop._iterator.x }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ (5).to_bytes(1000000000, 'big') }}",
        "{% set x = [] %}{{ x.append(1) }}",
        "{{ messages.clear() }}",
        "{{ lipsum(n=1000000) }}",
        "{{ 'a'.encode().x }}",
        "{{ 1 / 0 }}",
        "{{ no.such.thing }}",
        "{{ spend(1) }}",
    ],
)
def test_what_is_not_listed_cannot_be_reached(source):
    with pytest.raises(TemplateRefused):
        render(source, messages={})


def test_the_templates_own_message_reaches_the_client():
    with pytest.raises(TemplateRefused, match=r"refused the conversation: only 2 turns, please!$") as caught:
        render("{{ raise_exception('only 2 turns, please!') }}")
    assert caught.value.status == 400


def test_the_templates_own_message_is_one_line_that_no_terminal_obeys():
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('one\x1b[31m\n  two\u202e') }}")
    assert str(caught.value).endswith(r"refused the conversation: one\x1b[31m two\u202e")


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{% extends 'a' %}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | attr('b') }}",
        "{% if %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 300 + "{% endif %}" * 300,
        "{{ " + "9" * 100000 + " }}",
        "{#" * 60000,
        "{{ '" + "\\" * 100000,
        "a" * (MAX_SOURCE + 1),
    ],
)
def test_templates_that_do_not_compile_are_named(source):
    with pytest.raises(ModelFileError, match="chat template"):
        ChatTemplate(source)


def test_long_conversations_fit():
    turn = {"role": "user", "content": "word " * 300}
    source = (
        "{% for m in messages %}{% if messages[loop.index0 - 1].role == m.role %}"
        "{{ '<|' + m.role + '|>' + m.content | trim }}{% endif %}{% endfor %}"
    )
    assert len(render(source, messages=[turn] * 3000)) > 3_000_000
