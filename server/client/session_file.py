"""Files of exported sessions, on the client's side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

CHUNK_BYTES = 256 * 1024


async def write_whole(path: str | os.PathLike[str], chunks: AsyncGenerator[bytes, None]) -> int:
    """Write a file that is there whole or not at all; returns its size. Raises OSError, and what ``chunks`` raises."""
    target = Path(path)
    unfinished = target.with_name(f"{target.name}.unfinished")
    size = 0
    try:
        with unfinished.open("wb") as file:  # opened in a thread it could not be taken back
            async with aclosing(chunks):
                async for chunk in chunks:
                    size += await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(file.flush)
            await asyncio.to_thread(os.fsync, file.fileno())
        await asyncio.to_thread(unfinished.replace, target)
    finally:
        await asyncio.to_thread(unfinished.unlink, missing_ok=True)
    return size


async def read_chunks(path: str | os.PathLike[str]) -> AsyncGenerator[bytes, None]:
    """A file, piece by piece, open until the iterator is closed. Raises OSError."""
    with Path(path).open("rb") as file:  # noqa: ASYNC230 - opened in a thread it could not be taken back
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
