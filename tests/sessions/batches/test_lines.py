"""The input of a batch: what is wrong is told with the number of its line, whatever the bytes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.sessions.batches.lines import MOST_PROBLEMS, BatchInput

URL = "/v1/chat/completions"


def request(custom_id: str = "a", **fields: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": {"x": 1}, **fields}).encode()


def checked(tmp_path: Path, content: bytes, max_lines: int = 1000) -> tuple[int, list[tuple[int | None, str]]]:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    count, problems = BatchInput(path, len(content), URL, 500).check(max_lines)
    return count, [(problem.line, problem.code) for problem in problems]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff\xfe", "invalid_json_line"),
        (b"[" * 100_0, "line_too_long"),
        (b"[" * 400, "invalid_line"),
        (b"[]", "invalid_line"),
        (b'{"method": "POST"}', "missing_required_parameter"),
        (request(url="/v1/messages"), "mismatched_url"),
        (request(method="GET"), "invalid_method"),
        (request(body=[]), "invalid_body"),
        (request(body=None), "invalid_body"),
        (request(custom_id=""), "invalid_custom_id"),
        (request(custom_id=3), "invalid_line"),  # type: ignore[arg-type]
        (request(priority=1), "invalid_line"),
        (request("first"), "duplicate_custom_id"),
        (request(body={"x": "y" * 600}), "line_too_long"),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, line: bytes, code: str) -> None:
    content = b"\n".join([request("first"), b"", line, request("last")])
    assert checked(tmp_path, content) == (3, [(3, code)])


def test_the_file_as_a_whole(tmp_path: Path) -> None:
    assert checked(tmp_path, b"\n \r\n") == (0, [(None, "empty_file")])
    assert checked(tmp_path, b"{\n" * 500) == (MOST_PROBLEMS, [(n + 1, "invalid_json_line") for n in range(100)])
    many = b"\n".join(request(str(n)) for n in range(4))
    assert checked(tmp_path, many, max_lines=3) == (4, [(4, "too_many_lines")])
    assert checked(tmp_path, many.replace(b"\n", b"\r\n"), max_lines=4) == (4, [])


@given(ids=st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=12), data=st.data())
def test_all_lines_but_those_that_have_ended(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lines") / "input.jsonl"
    blanks = [data.draw(st.sampled_from([b"", b"\n", b" \n\r\n"])) for _ in ids]
    path.write_bytes(b"".join(blank + request(name) + b"\n" for blank, name in zip(blanks, ids, strict=True)))
    numbers, at = [], 0
    for blank in blanks:
        at += blank.count(b"\n") + 1
        numbers.append(at)
    done = data.draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    found = list(BatchInput(path, path.stat().st_size, URL, 500).lines(done))
    expected = [(n, name, b'{"x": 1}') for n, name in zip(numbers, ids, strict=True) if n not in done]
    assert [(line.number, line.custom_id, line.body) for line in found] == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_checked_without_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    checked(tmp_path_factory.mktemp("bytes"), content)
