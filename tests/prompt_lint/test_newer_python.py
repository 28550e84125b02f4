"""Sources of newer Pythons than the one that runs are read, and every place in them stays."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.prompt_lint.code.analysis import Language, analyse_source
from sessile.prompt_lint.code.newer_python import older_syntax

WRITTEN = [
    ('x = f"{d["key"]}"', "x = f\"{d['key']}\""),
    ('x = f"{", ".join(a)} {"\\n".join(b)}"', "x = f\"{', '.join(a)} {'_n'.join(b)}\""),
    ("x = f'{f'{d['k']}'}'", "x = f'{f\"{d[0  ]}\"}'"),
    ('x = f"{f"{f"{x}"}"}"', "x = f\"{f'{0     }'}\""),
    ('x = f"""{d["a"]} {f"""{y}"""} {"\\n"}"""', 'x = f"""{d["a"]} {f\'\'\'{y}\'\'\'} {"_n"}"""'),
    ('x = f"{"""a"""}"', "x = f\"{'''a'''}\""),
    ('x = t"{now()} rules"', 'x = f"{now()} rules"'),
    ('x = rt"\\d{a}"', 'x = rf"\\d{a}"'),
    ('x = f"{a!r:>{w}} {c["x"]:{d["y"]}} {{no}}"', "x = f\"{a!r:>{w}} {c['x']:{d['y']}} {{no}}\""),
    ('x = f"{x["it\'s"]}"', "x = f\"{x['it_s']}\""),
    ('# f"{"\nx = f"{d["q"]}" # it\'s', '# f"{"\nx = f"{d[\'q\']}" # it\'s'),
    ("def f[T: (int, str)](x: T) -> T:\n    return x", "def f               (x: T) -> T:\n    return x"),
    ("class A[T](B):\n    pass", "class A   (B):\n    pass"),
    ("type X = int\ntype Y[T] = list[T]\ntype = 3", "type_X = int\ntype_Y    = list[T]\ntype = 3"),
    ("try:\n    pass\nexcept A, B:\n    pass", "try:\n    pass\nexcept A+ B:\n    pass"),
]


@pytest.mark.parametrize(("newer", "older"), WRITTEN)
def test_newer_syntax_in_older(newer: str, older: str) -> None:
    assert older_syntax(newer) == older
    ast.parse(older)


@pytest.mark.parametrize(("newer", "older"), WRITTEN)
def test_what_is_old_already_stays(newer: str, older: str) -> None:
    assert older_syntax(older) == older


@given(st.text("fFrRtT\"'{}[]()\\#:!\n abtype=", max_size=60))
def test_places_stay_whatever_the_text(text: str) -> None:
    older = older_syntax(text)
    assert len(older) == len(text)
    assert [i for i, c in enumerate(older) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]


def test_findings_in_newer_sources() -> None:
    code = (
        "import time\n"
        "type Message = dict[str, str]\n"
        "def build[T](history: list[T], names) -> list[T]:\n"
        "    try:\n"
        '        head = f"{"It is" + f"{time.time()}"}"\n'
        "    except ValueError, KeyError:\n"
        '        head = t"{", ".join(set(names))}"\n'
        '    return [{"role": "system", "content": head + "é"}, *history]\n'
    )
    found = analyse_source("a.py", code, Language.PYTHON)
    assert [(f.rule, f.location.line) for f in found] == [("PL203", 7), ("PL101", 8)]
    (start, end) = (edit.start for edit in found[0].edits)
    assert code[start:end] == "set(names)"
