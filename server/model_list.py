"""``sessile models``: what is in the cache folders, without the network and without torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.table import Table

from .model.embedded import EMBEDDED_NAME, find_embedded
from .model.source import default_cache_dir
from .terminal import output_console


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. ``size_bytes`` is 0 for what is not here yet."""

    name: str
    kind: str
    state: str
    size_bytes: int
    path: str


def cached_models() -> Iterator[CachedModel]:
    """The embedded model and what the hub's cache holds."""
    prepared = find_embedded(default_cache_dir())
    yield CachedModel(
        name=EMBEDDED_NAME,
        kind="embedded",
        state="fetched at the first start" if prepared is None else "ready, hashes are right",
        size_bytes=0 if prepared is None else _size(prepared.folder),
        path=str(default_cache_dir() / "models" / EMBEDDED_NAME),
    )
    yield from _hub_models()


def _hub_models() -> Iterator[CachedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            yield CachedModel(
                name=repo.repo_id, kind="hub", state="ready", size_bytes=repo.size_on_disk, path=str(repo.repo_path)
            )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def print_models(*, as_json: bool) -> None:
    """Write the list to the standard output."""
    models = list(cached_models())
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode({"models": models})).decode() + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "kind", "state", "size", "path"):
        table.add_column(heading, overflow="fold")
    for model in models:
        size = f"{model.size_bytes / 2**20:.0f} MiB" if model.size_bytes else "-"
        table.add_row(model.name, model.kind, model.state, size, model.path)
    output_console().print(table)
