"""Files that are no traces, or only partly: one error with the place and what to do, or a count of what is left out."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
from trace_files import asked, workload

from sessile.bench_agent.cli import main
from sessile.bench_agent.errors import TraceError

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"\n \n", "no format that is known|no session"),
        (gzip.compress(GOOD.encode(), mtime=0), r"compressed with gzip.*\(unpack it first: gunzip\)"),
        (bz2.compress(GOOD.encode()), "compressed with bzip2"),
        (lzma.compress(GOOD.encode()), "compressed with xz"),
        (b"\x28\xb5\x2f\xfd" + b"\x00" * 20, r"compressed with zstd.*zstd -d"),
        (b"PK\x03\x04" + b"\x00" * 20, "a zip archive"),
        (b"PAR1" + b"\x00" * 20, "a Parquet file"),
        (GOOD.encode("utf-16"), r"UTF-16.*iconv"),
        (bytes(range(256)) * 4, "not JSON"),
        (b"\x00" * 100, "not JSON"),
        (b"[" * 100_000, "not JSON: nested too deeply|not JSON"),
        (b"hello\nworld\n", "not JSON"),
        (b'{"colour": "red"}\n', "no format that is known here .*--format"),
        (b"[]", "no format that is known|no session"),
        (b"null", "no format that is known|no session"),
    ],
    ids=[
        *("empty", "blank", "gzip", "bzip2", "xz", "zstd", "zip", "Parquet", "UTF-16", "every byte", "zeros"),
        *("deep", "words", "other objects", "no items", "null"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".txt"])
def test_what_is_no_trace(
    content: bytes, said: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=f"trace{suffix}.*(?:{said})"):
        workload(path)
    for more in ([], ["--skip-bad"]):
        assert main(["convert", str(path), str(tmp_path / "out"), "--to", "native", *more]) == 1
    assert capsys.readouterr().err.count("bench-agent: ") == 2


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_byte_order_marks_and_line_ends(ending: str, mark: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes((mark + GOOD + ending + GOOD).encode())
    assert len(workload(path).sessions) == 2
    (tmp_path / "one.json").write_bytes((mark + json.dumps(json.loads(GOOD), indent=2).replace("\n", ending)).encode())
    assert len(workload(tmp_path / "one.json").sessions) == 1


@pytest.mark.parametrize("name", ["text", "hash", "aiperf", "claude", "codex", "conversations", "bailian", "responses"])
def test_lines_in_one_array_are_the_same_trace(name: str, tmp_path: Path) -> None:
    """Written over many lines, as an array: the same sessions, but for those that are called after their lines."""
    sample = Path(__file__).parent / "samples" / f"{name}.jsonl"
    path = tmp_path / sample.with_suffix(".json").name
    path.write_text(json.dumps([json.loads(line) for line in sample.read_text().splitlines()], indent=1))
    assert workload(path).format == workload(sample).format
    assert [s.turns for s in workload(path).sessions] == [s.turns for s in workload(sample).sessions]


def test_half_a_line_at_the_end_and_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n{GOOD[:40]}\n{GOOD}\n{GOOD[:60]}")
    with pytest.raises(TraceError, match=r"t\.jsonl:2: not JSON: .*--skip-bad"):
        workload(path)
    found = workload(path, skip=True)
    assert len(found.sessions) == 2
    assert found.notes[0] == "lines left out: 2"
    assert "t.jsonl:2" in found.notes[1] and "t.jsonl:4" in found.notes[2]


def test_a_broken_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".json"):
        path = tmp_path / f"t{suffix}"
        path.write_text(f"{GOOD[:30]}\n{GOOD}\n{GOOD}\n")
        with pytest.raises(TraceError, match=rf"t{suffix}:1: not JSON"):
            workload(path)
        assert len(workload(path, skip=True).sessions) == 2


def test_a_broken_document_says_the_line(tmp_path: Path) -> None:
    whole = json.dumps([json.loads(GOOD)], indent=2).splitlines()
    whole[4] = whole[4].replace(":", ";")
    path = tmp_path / "t.json"
    path.write_text("\n".join(whole))
    with pytest.raises(TraceError, match=r"t\.json:5: not JSON"):
        workload(path, form="conversations")


def test_a_thousand_bad_lines_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD + "\n" + "{\n" * 1000)
    notes = workload(path, skip=True).notes
    assert notes[0] == "lines left out: 1000" and len(notes) < 30 and notes[-1] == "left out: 980 more"


def test_half_of_a_surrogate_pair_is_a_mark_in_the_text(tmp_path: Path) -> None:
    """JavaScript writes it where it cuts a text in the middle of an emoji."""
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD.replace("Hi", r"Hi \ud83d\ude00 \ud83d") + "\n")
    assert asked(workload(path).sessions[0].turns[0]) == [("user", "Hi 😀 �")]


def test_times_that_lie_too_far_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    told = ((0, "a"), (1e300, "a"), (5, "b"))
    rows = [{"timestamp": at, "input": "x", "output": "y", "session_id": name} for at, name in told]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TraceError, match=r"t\.jsonl: turn 1 of session 'a': gap_s has to be from 0 to 1,000,000,000"):
        workload(path)
    assert [session.session_id for session in workload(path, skip=True).sessions] == ["b"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
def test_numbers_that_json_has_not(number: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}'
    path.write_text(row + "\n" + row.replace("5", number) + "\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:2: not JSON"):
        workload(path)


def test_a_line_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD.replace("Hi", "x" * 5_000_000) + "\n" + GOOD + "\n")
    assert len(workload(path).sessions) == 2


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace file here"):
        workload(tmp_path)
    (tmp_path / "README.json").write_text('{"colour": "red"}')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jsonl").write_text('{"timestamp": 1, "input": "x", "output": "y", "session_id": "s"}\n')
    assert workload(tmp_path).format == "text"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD)
    path.chmod(0)
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        workload(path)


def test_convert_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD)
    for result, said in (
        (tmp_path / "no" / "out.jsonl", "cannot be written"),
        (tmp_path, "cannot be written"),
        (path, "the trace itself"),
    ):
        assert main(["convert", str(path), str(result), "--to", "native"]) == 1
        assert said in capsys.readouterr().err
    assert path.read_text() == GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        '"turns": [{"prompt": {"type": "text", "text": "a"}}], "arrival_s": -1',
        '"turns": [{"prompt": {"type": "text", "text": "a"}, "gap_s": -1}]',
        '"turns": [{"prompt": {"type": "text", "text": "a"}, "output_tokens": 0}]',
        '"turns": [{"prompt": {"type": "blocks", "hash_ids": [1], "block_tokens": 0, "num_tokens": 5}}]',
        '"turns": [{"prompt": {"type": "blocks", "hash_ids": [1], "block_tokens": 9, "num_tokens": 99999999999}}]',
        '"turns": []',
    ],
)
def test_a_native_line_with_impossible_numbers(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"workload": "sessile-workload-1"}\n{"session_id": "x", ' + wrong + "}\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:2: "):
        workload(path)
