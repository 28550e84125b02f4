"""Sessions that leave as files and come from files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import msgspec

from ...server.engine.cache_messages import ExportPath, ImportPath
from ...server.engine.messages import EngineReady
from ..errors import CapacityError, RequestError, SessileError, StoreError
from ..export import ExportedEntry, ExportedSession, ExportHeader, ExportKey, FileAssembler, FileWriter, load_key
from ..export.signature import KEY_NAME
from ..keeping import Keeping, PersistencePolicy
from ..session import START, EntryKind, LogPart, Place, Session, SessionLog, SessionState
from ..store import Change, SessionStore
from ..store.rows import encode_token_ids
from ..store.threads import in_thread
from . import answers, validation
from .kv_care import lifetime_under
from .ports import Clock, EngineCache
from .records import SessionRecords
from .requests import ExportRequest, Imported, ImportSession
from .turns import Turns
from .views import new_session_id, view_of

logger = logging.getLogger(__name__)

FOLDER_NAME = "transfer"  # in the data folder; what is in it belongs to exports and imports that run
_ROOM_TO_LEAVE = 64 * 2**20  # bytes of the file system that no import takes


class SessionTransfer:
    """Exports and imports. ``key_file`` None: the key stands in the data folder."""

    def __init__(
        self,
        records: SessionRecords,
        engine: EngineCache,
        turns: Turns,
        clock: Clock,
        policy: PersistencePolicy,
        key_file: Path | None,
    ) -> None:
        self._records = records
        self._store: SessionStore = records.store
        self._engine = engine
        self._turns = turns
        self._clock = clock
        self._policy = policy
        self._folder = self._store.folder.absolute() / FOLDER_NAME
        self._key_file = key_file if key_file is not None else self._store.folder / KEY_NAME
        self._key: ExportKey | None = None
        shutil.rmtree(self._folder, ignore_errors=True)  # of a process that was killed

    async def export(self, request: ExportRequest) -> AsyncGenerator[bytes, None]:
        """The file of an open session, in pieces. A turn that runs is not part of it.

        Raises:
            EngineError: KV is asked for, and there is no engine that has it.
        """
        validation.require_tenant(request.tenant)
        validation.require_session_id(request.session_id)
        session = await self._records.open(request.session_id, request.tenant)
        session.require_version(request.expected_version)
        log = await self._store.log(session.place)
        key = await self._own_key()
        with self._scratch() as kv:
            kv_tokens = 0 if request.without_kv or not log.parts else await self._export_kv(session, log, kv)
            kv_bytes = _size_of(kv) if kv_tokens else 0
            writer = FileWriter()
            yield writer.header(_header(session, log, kv_bytes, kv_tokens, now=self._clock()))
            for part in log.parts:
                yield writer.entry(_exported(part))
            if kv_tokens:
                with contextlib.closing(writer.kv(kv)) as pieces:
                    while (piece := await in_thread(lambda: _next(pieces, kv))) is not None:
                        yield piece
            yield writer.end(key)

    async def import_(self, request: ImportSession, pieces: AsyncIterator[bytes]) -> Imported:
        """A session from the file that ``pieces`` are; all of it or nothing.

        Raises:
            RequestError: the file is damaged or another tenant's, or was signed by another server.
            ModelChanged: its tokens belong to another model or tokenizer.
            CapacityError: there is no room for its KV.
        """
        validation.require_tenant(request.tenant)
        validation.require_identifier(request.request_id, "request_id")
        engine = self._turns.engine_info()
        key = await self._own_key()
        with self._scratch() as kv:
            with contextlib.closing(_KvFile(kv)) as sink:
                assembler = FileAssembler(key, sink, lambda header: self._check(header, request.tenant, engine))
                async for piece in pieces:
                    await in_thread(partial(assembler.feed, piece))
            exported = assembler.session()
            _require_tokens(exported, engine)
            request = msgspec.structs.replace(request, file_digest=exported.digest)
            stored = await self._records.stored(request)
            if stored is not None:
                return answers.answer_again(stored, request, Imported)
            kv_tokens, refused = await self._import_kv(request, exported, kv)
            return await self._commit(request, exported, kv_tokens, refused)

    async def _export_kv(self, session: Session, log: SessionLog, kv: Path) -> int:
        path = ExportPath(token_ids=log.token_ids(), cache_salt=session.tenant, owner=session.session_id, file=str(kv))
        return (await self._engine.export_path(path)).tokens

    async def _import_kv(self, request: ImportSession, exported: ExportedSession, kv: Path) -> tuple[int, str]:
        """Tokens whose KV is there now, and why not those of the file. The log does without."""
        if request.without_kv or not exported.header.kv_bytes:
            return 0, ""
        token_ids = [token for entry in exported.entries for token in entry.token_ids]
        lifetime = lifetime_under(exported.header.persistence or self._policy)
        path = ImportPath(token_ids=token_ids, cache_salt=request.tenant, file=str(kv), lifetime=lifetime)
        try:
            return (await self._engine.import_path(path)).tokens, ""
        except SessileError as error:
            logger.info("an import goes on without its KV: %s", error)
            return 0, str(error)

    async def _commit(
        self, request: ImportSession, exported: ExportedSession, kv_tokens: int, refused: str
    ) -> Imported:
        header, now = exported.header, self._clock()
        base = Session(
            session_id=new_session_id(now),
            tenant=request.tenant,
            version=1,
            state=SessionState.OPEN,
            place=START,
            model=header.model,
            system=header.system,
            tools=header.tools,
            parent_session_id=None,
            created_at=now,
            updated_at=now,
            keeping=Keeping(persistence=header.persistence),
        )
        place = Place(None, header.num_tokens, header.num_turns)  # the store makes the head
        session = msgspec.structs.replace(base, place=place)
        answer = Imported(session=view_of(session, self._policy), kv_tokens=kv_tokens, kv_refused=refused)
        change = Change(session=session, base_version=0, entries=exported.entries)
        answer, _ = await self._records.commit(request, change, answer)
        return answer

    def _check(self, header: ExportHeader, tenant: str, engine: EngineReady) -> None:
        """What can be refused before the rest of the file is taken."""
        if header.tenant != tenant:
            raise RequestError(
                "the file is bound to another tenant",
                field="tenant",
                remedy="import it as that tenant, or sign it for this one with `sessile sessions sign`",
            )
        header.model.require_same(self._turns.identity(engine))
        validation.require_opening_of(header.system, header.tools, header.persistence)
        free = shutil.disk_usage(self._store.folder).free - _ROOM_TO_LEAVE
        if header.kv_bytes > free:
            raise CapacityError(
                f"the file's KV has {header.kv_bytes} bytes, the data folder has room for {max(free, 0)}",
                field="file.header.kv_bytes",
                remedy="make room, or import it without KV",
            )

    async def _own_key(self) -> ExportKey:
        if self._key is None:
            self._key = await asyncio.to_thread(load_key, self._key_file)
        return self._key

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """The path of a file of one's own, which is gone afterwards."""
        path = self._folder / f"{secrets.token_hex(8)}.kv"
        with _disk_errors(path):
            self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


class _KvFile:
    """The KV part of a file that is being read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _disk_errors(path):
            self._file = path.open("xb")

    def write(self, piece: bytes) -> None:
        with _disk_errors(self._path):
            self._file.write(piece)

    def close(self) -> None:
        with _disk_errors(self._path):
            self._file.close()


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path} cannot be used: {error.strerror}", remedy="make room on the disk, or make the folder writable"
        ) from error


def _next(pieces: Iterator[bytes], path: Path) -> bytes | None:
    with _disk_errors(path):
        return next(pieces, None)


def _size_of(path: Path) -> int:
    return path.stat().st_size


def _header(session: Session, log: SessionLog, kv_bytes: int, kv_tokens: int, *, now: float) -> ExportHeader:
    return ExportHeader(
        created_at=now,
        tenant=session.tenant,
        session_id=session.session_id,
        version=session.version,
        model=session.model,
        system=session.system,
        tools=session.tools,
        persistence=session.keeping.persistence,
        num_tokens=session.place.num_tokens,
        num_turns=session.place.num_turns,
        num_entries=len(log.parts),
        kv_bytes=kv_bytes,
        kv_tokens=kv_tokens,
    )


def _exported(part: LogPart) -> ExportedEntry:
    """One part of the log. Of an entry that was cut, the tokens alone are left: what they said is no longer whole."""
    kind = part.entry.kind if part.whole else EntryKind.INPUT
    messages = part.entry.messages if part.whole else ()
    return ExportedEntry(kind=kind, token_ids=encode_token_ids(part.token_ids), messages=messages)


def _require_tokens(exported: ExportedSession, engine: EngineReady) -> None:
    """Raise RequestError unless this model could have written the log."""
    if exported.header.num_tokens > engine.context_length:
        raise RequestError(
            f"the log has {exported.header.num_tokens} tokens, the context holds {engine.context_length}",
            field="file.header.num_tokens",
            remedy="import it where --max-context is larger",
        )
    for index, entry in enumerate(exported.entries):
        if min(entry.token_ids) < 0 or max(entry.token_ids) >= engine.vocab_size:
            raise RequestError(
                "a token is not in the vocabulary", field=f"file.entries[{index}].token_ids", remedy="export it again"
            )
