"""How sessions, entries and answers lie in rows: encodings and checksums, both ways."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from ..errors import StoreError
from ..keeping import NOTHING_SAID, Keeping
from ..messages import Message, Tool
from ..session import Entry, EntryKind, Head, ModelIdentity, NewEntry, Place, Session, SessionState

Row = dict[str, Any]

_MESSAGES = msgspec.json.Decoder(tuple[Message, ...])
_TOOLS = msgspec.json.Decoder(tuple[Tool, ...])
_KEEPING = msgspec.json.Decoder(Keeping)


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered to ``request_id`` in ``scope``. ``request_digest`` identifies the request's body."""

    scope: str
    request_id: str
    request_digest: bytes
    answer: bytes
    created_at: float


def first(found: Generator[Row, None, None]) -> Row | None:
    """The first row of a query, which is over then."""
    with closing(found):
        return next(found, None)


def damaged(what: str) -> StoreError:
    """The error for content that cannot be what was written."""
    return StoreError(
        f"the session store is damaged: {what}",
        remedy="`sessile store restore --only sessions` goes back to the last good copy, some hours old at most, and "
        "keeps what is there; or restore a backup, or recover the file with `sqlite3 sessions.db .recover`; to go on "
        "without these sessions, use another data folder",
    )


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Little-endian int32."""
    words = array("i", token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def decode_token_ids(blob: bytes) -> tuple[int, ...]:
    words = array("i")
    words.frombytes(blob)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)


def _checksum(row: Mapping[str, Any]) -> int:
    """CRC-32 over all columns but the checksum itself, each with its name and type."""
    checksum = 0
    for name in sorted(row):
        value = row[name]
        payload = value if isinstance(value, bytes) else repr(value).encode()
        checksum = zlib.crc32(payload, zlib.crc32(f"{name}:{type(value).__name__}:".encode(), checksum))
    return checksum


def sealed(row: Row) -> Row:
    """The row with its checksum."""
    return {**row, "checksum": _checksum(row)}


def opened(row: Row, what: str) -> Row:
    """The row without its checksum. Raises StoreError if it does not match."""
    content = {name: value for name, value in row.items() if name != "checksum"}
    if _checksum(content) != row["checksum"]:
        raise damaged(f"{what} does not match its checksum")
    return content


def session_row(session: Session) -> Row:
    place, model = session.place, session.model
    return sealed(
        {
            "session_id": session.session_id,
            "tenant": session.tenant,
            "version": session.version,
            "state": session.state.value,
            "head_id": place.head.entry_id if place.head else None,
            "head_used": place.head.used if place.head else None,
            "num_tokens": place.num_tokens,
            "num_turns": place.num_turns,
            "model": model.name,
            "model_fingerprint": model.model_fingerprint,
            "tokenizer_fingerprint": model.tokenizer_fingerprint,
            "system": session.system,
            "tools": msgspec.json.encode(session.tools),
            "parent_session_id": session.parent_session_id,
            "created_at": float(session.created_at),
            "updated_at": float(session.updated_at),
        }
    )


def keeping_row(session_id: str, keeping: Keeping) -> Row:
    return sealed({"session_id": session_id, "keeping": msgspec.json.encode(keeping)})


def keeping_from(row: Row) -> Keeping:
    """Raises StoreError for a damaged row."""
    row = opened(row, f"the keeping of session {row['session_id']}")
    return _KEEPING.decode(row["keeping"])


def session_from(row: Row, keeping: Keeping = NOTHING_SAID) -> Session:
    """Raises StoreError for a damaged row."""
    row = opened(row, f"session {row['session_id']}")
    head = None if row["head_id"] is None else Head(row["head_id"], row["head_used"])
    return Session(
        session_id=row["session_id"],
        tenant=row["tenant"],
        version=row["version"],
        state=SessionState(row["state"]),
        place=Place(head, row["num_tokens"], row["num_turns"]),
        model=ModelIdentity(
            name=row["model"],
            model_fingerprint=row["model_fingerprint"],
            tokenizer_fingerprint=row["tokenizer_fingerprint"],
        ),
        system=row["system"],
        tools=_TOOLS.decode(row["tools"]),
        parent_session_id=row["parent_session_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        keeping=keeping,
    )


def entry_row(entry_id: int, entry: NewEntry, before: Place) -> Row:
    """The row of an entry that continues ``before``."""
    return sealed(
        {
            "entry_id": entry_id,
            "parent_id": before.head.entry_id if before.head else None,
            "parent_used": before.head.used if before.head else None,
            "kind": entry.kind.value,
            "start": before.num_tokens,
            "turn": before.num_turns + (entry.kind is EntryKind.OUTPUT),
            "token_ids": encode_token_ids(entry.token_ids),
            "messages": msgspec.json.encode(entry.messages),
        }
    )


def entry_from(row: Row) -> Entry:
    """Raises StoreError for a damaged row."""
    row = opened(row, f"entry {row['entry_id']}")
    return Entry(
        entry_id=row["entry_id"],
        parent=None if row["parent_id"] is None else Head(row["parent_id"], row["parent_used"]),
        kind=EntryKind(row["kind"]),
        start=row["start"],
        turn=row["turn"],
        token_ids=decode_token_ids(row["token_ids"]),
        messages=_MESSAGES.decode(row["messages"]),
    )


def account_row(entry_id: int, account: bytes) -> Row:
    return sealed({"entry_id": entry_id, "account": account})


def account_from(row: Row) -> bytes:
    """Raises StoreError for a damaged row."""
    account: bytes = opened(row, f"the account of entry {row['entry_id']}")["account"]
    return account


def answer_row(answer: StoredAnswer) -> Row:
    return sealed({**msgspec.structs.asdict(answer), "created_at": float(answer.created_at)})


def answer_from(row: Row) -> StoredAnswer:
    """Raises StoreError for a damaged row."""
    return StoredAnswer(**opened(row, f"the answer to request {row['request_id']}"))
