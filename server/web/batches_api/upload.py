"""A file that comes as a form (multipart/form-data), as OpenAI's clients send it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ....sessions.errors import RequestError
from ...settings import suggest
from ..decode import body_pieces
from ..errors import BodyTooLarge
from .bodies import LEAST_EXPIRES_AFTER_S, MOST_EXPIRES_AFTER_S

_PIECE = 1 << 20
_FORM_BYTES = 64 * 1024  # of the form around the file
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("file", "purpose", _ANCHOR, _SECONDS)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as it came. ``keep_s``: seconds after which it is to be deleted, if that was said."""

    filename: str
    num_bytes: int
    keep_s: float | None
    content: IO[bytes]

    def pieces(self) -> Iterator[bytes]:
        """The content, from its start."""
        self.content.seek(0)
        while piece := self.content.read(_PIECE):
            yield piece


@asynccontextmanager
async def uploaded(request: Request, max_file_bytes: int) -> AsyncIterator[Upload]:
    """The upload that a request is, spooled to a temporary file.

    Raises:
        RequestError: no form, a field that is missing, unknown or wrong; or the client went away.
        BodyTooLarge: as soon as it is known to be longer.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError(
            "the body is not a form", field="content-type", remedy="send multipart/form-data with file and purpose"
        )
    too_large = BodyTooLarge(max_file_bytes, "send less, or raise --batches-max-file-bytes")
    async with aclosing(body_pieces(request, max_file_bytes + _FORM_BYTES, too_large)) as pieces:
        parser = MultiPartParser(request.headers, pieces, max_files=1, max_fields=len(_FIELDS))
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise RequestError(f"the form cannot be read: {error.message}", field="body") from error
    try:
        yield _upload(form)
    finally:
        await form.close()


def _upload(form: FormData) -> Upload:
    for name in form:
        if name not in _FIELDS:
            raise RequestError(f"unknown field {name[:80]}", field=name[:80], remedy=suggest(name, _FIELDS))
    purpose = _text(form, "purpose")
    if purpose != "batch":
        raise RequestError(f"purpose is {purpose[:40]!r}", field="purpose", remedy='only "batch" is served')
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("file is missing", field="file", remedy="send the file as a part with a filename")
    return Upload(
        filename=(file.filename or "upload.jsonl")[:255],
        num_bytes=file.size or 0,
        keep_s=_keep_s(form),
        content=file.file,
    )


def _keep_s(form: FormData) -> float | None:
    if _SECONDS not in form and _ANCHOR not in form:
        return None
    if _text(form, _ANCHOR) != "created_at":
        raise RequestError("the anchor is not created_at", field=_ANCHOR, remedy='send "created_at"')
    seconds = _text(form, _SECONDS)
    least, most = LEAST_EXPIRES_AFTER_S, MOST_EXPIRES_AFTER_S
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 10 and least <= int(seconds) <= most):
        raise RequestError(
            f"{_SECONDS} is {seconds[:40]!r}", field=_SECONDS, remedy=f"send a number from {least} to {most}"
        )
    return float(seconds)


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} is missing", field=name, remedy="send it as a field of the form")
    return value
