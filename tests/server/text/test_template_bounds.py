"""Templates that would run for ever or fill the memory are stopped."""

from __future__ import annotations

import pytest

from sessile.server.text import template_budget
from sessile.server.text.chat_template import ChatTemplate
from sessile.server.text.template_budget import Budget, TemplateBudgetError
from sessile.sessions.errors import ModelError, RequestError

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with a condition": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loops over a filter": (
        "{% for a in range(99999) %}{% for b in range(99999) | select('lt', 0) %}{% endfor %}{% endfor %}"
    ),
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "two macros without end": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}"
    ),
    "a recursive loop": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "a list that doubles": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "a text that doubles": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "a sum that doubles": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "a block that doubles": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}{{ ns.x }}"
    ),
    "a namespace in a namespace": (
        "{% set ns = namespace(x=1) %}{% set box = namespace(inner=ns) %}{% for i in range(60) %}"
        "{% set box.inner = namespace(a=box.inner, b=box.inner) %}{% endfor %}{{ box.inner }}"
    ),
    "a long text": "{{ 'a' * 999999999999 }}",
    "a long list": "{{ [1] * 999999999999 }}",
    "a huge power": "{{ 10 ** 9999999 }}",
    "a huge product": "{% set ns = namespace(n=2) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a wide format": "{{ '%99999999999d' % 1 }}",
    "a starred format": "{{ '%*d' % (99999999999, 1) }}",
    "a wide format method": "{{ '{:>99999999999}'.format('a') }}",
    "a padded text": "{{ 'a'.ljust(99999999999) }}",
    "a centred text": "{{ 'a'.center(99999999999) }}",
    "a zero-filled text": "{{ 'a'.zfill(99999999999) }}",
    "a replacement": "{% set x = 'a' * 999999 %}{{ x.replace('a', x) }}",
    "a replacing filter": "{% set x = 'a' * 999999 %}{{ x | replace('a', x) }}",
    "a join": "{% set x = 'a' * 99999 %}{{ x.join([x] * 99999) }}",
    "a joining filter": "{% set x = 'a' * 99999 %}{{ ([x] * 99999) | join(x) }}",
    "an indentation": "{{ ('a\n' * 99999) | indent(99999999) }}",
    "a deep JSON text": (
        "{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}"
        "{{ ns.x | tojson(indent=16) }}"
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.timeout(20)
def test_it_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_OPERATIONS", 200_000)
    template = ChatTemplate(ENDLESS[name])
    with pytest.raises(RequestError, match="chat template") as caught:
        template.render([{"role": "user", "content": "hi"}])
    assert caught.value.field == "messages"


@pytest.mark.parametrize("source", ["{{ 'a' | center(99999999) }}", "{{ lipsum(n=99) }}", "{{ 'a' | wordwrap(1) }}"])
def test_what_no_chat_template_needs_is_not_there(source: str) -> None:
    with pytest.raises((ModelError, RequestError)):
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])


def test_time_is_bounded_by_the_clock() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    budget.charge()
    now[0] = template_budget.MAX_SECONDS + 1
    with pytest.raises(TemplateBudgetError, match="seconds"):
        budget.charge()


def test_a_long_ordinary_conversation_is_far_from_the_bounds() -> None:
    messages = [{"role": role, "content": "word " * 2000} for _ in range(500) for role in ("user", "assistant")]
    assert len(ChatTemplate().render(messages).text) > 10_000_000


def test_one_rendering_does_not_spend_anothers_budget() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok")
    for _ in range(25):
        assert template.render([]).text == "ok"
