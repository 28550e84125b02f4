"""Export files: what was written is read, and nothing else is."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sessile.sessions.errors import ConfigError, RequestError
from sessile.sessions.export import (
    ExportedEntry,
    ExportedSession,
    ExportHeader,
    ExportKey,
    FileAssembler,
    FileWriter,
    load_key,
    resign,
)
from sessile.sessions.export.format import FRAME, MAGIC, FrameKind
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import EntryKind, ModelIdentity
from sessile.sessions.store.rows import encode_token_ids

KEY = ExportKey(b"k" * 32)
KV = bytes(range(256)) * 12
ENTRIES = (
    ExportedEntry(
        kind=EntryKind.PROMPT,
        token_ids=encode_token_ids([1, 2, 3]),
        messages=(Message(role=Role.USER, content="hi"),),
    ),
    ExportedEntry(kind=EntryKind.OUTPUT, token_ids=encode_token_ids([4, 5])),
)
HEADER = ExportHeader(
    created_at=1.0,
    tenant="a",
    session_id="ses_1",
    version=2,
    model=ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t"),
    system="be good",
    tools=({"type": "function", "function": {"name": "f"}},),
    persistence=None,
    num_tokens=5,
    num_turns=1,
    num_entries=2,
    kv_bytes=len(KV),
    kv_tokens=5,
)


def written(header: ExportHeader = HEADER, entries: tuple[ExportedEntry, ...] = ENTRIES, kv: bytes = KV) -> bytes:
    writer = FileWriter()
    pieces = [writer.header(header), *(writer.entry(entry) for entry in entries)]
    pieces += [writer.copy(FrameKind.KV, kv[start : start + 1000]) for start in range(0, len(kv), 1000)]
    return b"".join([*pieces, writer.end(KEY)])


def read(content: bytes, piece: int = 1 << 20, key: ExportKey = KEY) -> tuple[ExportedSession, bytes]:
    kv = io.BytesIO()
    assembler = FileAssembler(key, kv, lambda header: None)
    for start in range(0, len(content), piece):
        assembler.feed(content[start : start + piece])
    return assembler.session(), kv.getvalue()


WHOLE = written()


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_what_was_written_is_read(piece: int) -> None:
    session, kv = read(WHOLE, piece)
    assert (session.header, kv) == (HEADER, KV)
    assert [entry.token_ids for entry in session.entries] == [(1, 2, 3), (4, 5)]
    assert session.entries[0].messages == ENTRIES[0].messages


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) * 8 - 1))
def test_a_flipped_bit_is_found_and_said_where(bit: int) -> None:
    changed = bytearray(WHOLE)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RequestError) as refused:
        read(bytes(changed))
    assert (refused.value.field or "").startswith("file")
    assert refused.value.remedy


def test_a_file_cut_at_every_byte_is_refused() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(RequestError, match="byte"):
            read(WHOLE[:length])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400), st.integers(0, len(WHOLE)), st.integers(0, 400))
@example(b"x", len(WHOLE), 0)
def test_no_bytes_make_it_fail_otherwise(inserted: bytes, place: int, replaced: int) -> None:
    content = WHOLE[:place] + inserted + WHOLE[place + replaced :]
    if content == WHOLE:
        return
    with pytest.raises(RequestError):
        read(content)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)


@settings(max_examples=100, deadline=None)
@given(ANYTHING, st.sampled_from(list(FrameKind)))
def test_frames_of_another_writer_are_judged_by_what_is_in_them(value: object, kind: FrameKind) -> None:
    """Right checksums around anything at all: whoever can write them still cannot make the reader fail."""
    try:
        payload = (
            msgspec.json.encode(value) if kind in (FrameKind.HEADER, FrameKind.END) else msgspec.msgpack.encode(value)
        )
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return
    writer = FileWriter()
    content = writer.header(HEADER) + writer.copy(kind, payload) + writer.end(KEY)
    with pytest.raises(RequestError):
        read(content)


def test_frames_can_not_change_their_places() -> None:
    frames, offset = [], len(MAGIC)
    while offset < len(WHOLE):
        length = FRAME.size + FRAME.unpack_from(WHOLE, offset)[1]
        frames.append(WHOLE[offset : offset + length])
        offset += length
    for first in range(len(frames)):
        for second in range(first + 1, len(frames)):
            swapped = list(frames)
            swapped[first], swapped[second] = frames[second], frames[first]
            with pytest.raises(RequestError):
                read(MAGIC + b"".join(swapped))
        with pytest.raises(RequestError):
            read(MAGIC + b"".join(frames[:first] + frames[first + 1 :]))
        with pytest.raises(RequestError):
            read(MAGIC + b"".join(frames[: first + 1] + frames[first:]))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_tokens": 6}, "file.header.num_tokens"),
        ({"num_turns": 0}, "file.header.num_turns"),
        ({"num_entries": 3}, "file.header.num_entries"),
        ({"num_entries": 1}, "file.entries[1]"),
        ({"kv_bytes": 1}, "file.kv"),
        ({"kv_bytes": 99_999}, "file.header.kv_bytes"),
        ({"format": 2}, "file.header.format"),
    ],
)
def test_a_header_that_does_not_fit_is_named(change: dict[str, int], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(written(msgspec.structs.replace(HEADER, **change)))
    assert refused.value.field == field


def test_the_signature_binds_the_tenant(tmp_path: Path) -> None:
    other = ExportKey(b"o" * 32)
    with pytest.raises(RequestError, match="another server") as refused:
        read(WHOLE, key=other)
    assert refused.value.field == "file.signature"
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(WHOLE)
    assert resign(source, target, other, "b").tenant == "b"
    session, kv = read(target.read_bytes(), key=other)
    assert (session.header.tenant, kv) == ("b", KV)
    resign(source, source, other, None)
    assert read(source.read_bytes(), key=other)[0].header.tenant == "a"
    source.write_bytes(WHOLE[:-3])
    with pytest.raises(RequestError):
        resign(source, tmp_path / "c", other, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_key_is_made_once_and_kept_secret(tmp_path: Path) -> None:
    path = tmp_path / "export.key"
    key = load_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_key(path).sign(b"x") == key.sign(b"x") != KEY.sign(b"x")
    path.write_text("no key")
    with pytest.raises(ConfigError) as refused:
        load_key(path)
    assert refused.value.field == "sessions.export_key"
