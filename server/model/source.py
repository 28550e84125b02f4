"""Where a model's files are, found by what the user wrote: nothing, a folder, a GGUF file or a hub id. No torch."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...sessions.errors import ModelError
from .embedded import EMBEDDED_NAME, prepare_embedded

Progress = Callable[[str, float], None]
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?P<file>/[\w./-]+\.gguf)?(?:@(?P<revision>[\w./-]+))?")
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
]


class SourceKind(enum.Enum):
    """What lies at a source's path."""

    FOLDER = "folder"  # config.json, tokenizer.json, safetensors
    GGUF = "gguf"  # one file
    PREPARED = "prepared"  # a folder made from the embedded model's GGUF file


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files on this machine. ``content_hash`` is known where the files were checked when they were found."""

    name: str
    path: Path
    kind: SourceKind
    content_hash: str | None = None


def unwatched(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


def default_cache_dir() -> Path:
    """``$SESSILE_CACHE_DIR``, or ``$XDG_CACHE_HOME/sessile``, or ``~/.cache/sessile``."""
    if own := os.environ.get("SESSILE_CACHE_DIR"):
        return Path(own)
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if configured else Path.home() / ".cache") / "sessile"


def resolve_model(
    name_or_path: str | None, cache_dir: Path | None = None, progress: Progress = unwatched
) -> ModelSource:
    """Find a model's files; fetch those of the embedded model or of a hub id where they are not here yet.

    None is the embedded model, which is fetched once and needs no network afterwards. ``cache_dir`` None is
    ``default_cache_dir()``. A hub id is ``owner/name``, ``owner/name@revision`` or ``owner/name/file.gguf``.

    Raises:
        ModelError: there is no such model, or it cannot be fetched; the remedy says what to do.
    """
    if name_or_path is None or name_or_path == EMBEDDED_NAME:
        prepared = prepare_embedded(cache_dir or default_cache_dir(), progress)
        return ModelSource(EMBEDDED_NAME, prepared.folder, SourceKind.PREPARED, prepared.content_hash)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    match = _HUB_ID.fullmatch(name_or_path)
    if match is None or name_or_path.startswith((".", "/", "~")):
        raise ModelError(
            f"there is no model {name_or_path!r}",
            field="model",
            remedy="name a folder, a .gguf file or a hub id (owner/name), or none for the embedded model",
        )
    return _from_hub(match, progress)


def _folder(path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} holds no config.json", field="model", remedy="name a model's folder, or a .gguf file")
    return ModelSource(path.resolve().name, path, SourceKind.FOLDER)


def _file(path: Path) -> ModelSource:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(
                f"{path} is not a GGUF file", field="model", remedy="name a model's folder, or a .gguf file"
            )
    return ModelSource(path.stem, path, SourceKind.GGUF)


def _from_hub(match: re.Match[str], progress: Progress) -> ModelSource:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repo, file, revision = match["repo"], match["file"], match["revision"]
    progress(f"find {repo} on the hub", 0.0)
    try:
        if file is not None:
            downloaded = hf_hub_download(repo, file.removeprefix("/"), revision=revision)
            return ModelSource(f"{repo}{file}", Path(downloaded), SourceKind.GGUF)
        folder = snapshot_download(repo, revision=revision, allow_patterns=_HUB_FILES)
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{repo} is not in the hub's cache, and the hub cannot be reached", field="model", remedy=_HUB_REMEDY
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{repo} cannot be fetched: {first_line}", field="model", remedy=_HUB_REMEDY) from error
    return ModelSource(repo, _folder(Path(folder)).path, SourceKind.FOLDER)


_HUB_REMEDY = "check the id, the network and HF_TOKEN, or name a local folder or .gguf file"
