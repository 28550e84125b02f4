"""The input of a batch: what is wrong is told with the number of its line, whatever the bytes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.sessions.batches.answers import error_line, response_line
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


@pytest.mark.parametrize(
    ("line", "param", "words"),
    [
        (request(custom_id=3), "custom_id", "got `int`"),  # type: ignore[arg-type]
        (request(priority=1), "priority", "unknown field"),
        (b'{"method": "POST"}', "custom_id", "missing"),
        (b'{"custom_id": "\\ud83d"}', None, "custom_id has half of a surrogate pair"),
        (b'{"custom_id": "\\ud83d\\ude00",}', None, "not valid JSON"),
        (b'{"body": {"temperature": NaN}}', None, "body.temperature is NaN"),
    ],
)
def test_a_bad_line_is_told_with_what_is_wrong(tmp_path: Path, line: bytes, param: str | None, words: str) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(line)
    _, (problem,) = BatchInput(path, len(line), URL, 500).check(10)
    assert problem.param == param
    assert words in problem.message


def test_a_byte_order_mark_before_the_first_line_is_passed_over(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + request("a") + b"\n" + request("b")
    assert checked(tmp_path, content) == (2, [])
    path = tmp_path / "input.jsonl"
    lines = BatchInput(path, len(content), URL, 500).lines(set())
    assert [line.custom_id for line in lines] == ["a", "b"]


def test_a_line_of_results_is_one_line_to_every_reader() -> None:
    text = "a\u2028b\u2029c\x85d🐘"
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    for line in (response_line(text, 200, "r", body), error_line(text, "code", text)):
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line)["custom_id"] == text
    assert json.loads(response_line(text, 200, "r", body))["response"]["body"]["text"] == text


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
