"""A tokenizer and a chat template from a model's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from ...sessions.errors import ModelError
from ..model.hf_config import read_json
from ..model.source import ModelSource, SourceKind
from ..model.weights.gguf_file import GGUFFile
from .chat_template import CHATML, ChatTemplate, TemplateTokens
from .end_of_turn import END_OF_TURN_NAMES
from .gguf_tokenizer import tokenizer_from_gguf
from .tokenizer import SpecialTokens, Tokenizer

_MOST_UNUSED_IDS = 1 << 16
_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TextConfig(msgspec.Struct, frozen=True):
    """What a converted model keeps beside its tokenizer.json."""

    eos_token_ids: list[int]
    bos_token_id: int | None
    variables: dict[str, str]
    chat_template: str | None

    @classmethod
    def of(cls, special: SpecialTokens, chat_template: str | None) -> TextConfig:
        return cls(sorted(special.eos_token_ids), special.bos_token_id, special.variables, chat_template)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        ModelError: the files are missing or damaged, or hold a tokenizer of an unknown kind.
    """
    match source.kind:
        case SourceKind.FOLDER:
            return _from_folder(source.path)
        case SourceKind.GGUF:
            backend, special, _ = tokenizer_from_gguf(GGUFFile(source.path).metadata)
            return Tokenizer(backend, special)
        case SourceKind.PREPARED:
            text = _text_config(source.path)
            special = SpecialTokens(frozenset(text.eos_token_ids), text.bos_token_id, text.variables)
            return Tokenizer(_backend(source.path), special)


def load_chat_template(
    source: ModelSource, tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now
) -> ChatTemplate:
    """The model's chat template, or ChatML where it has none. ``clock`` answers templates that ask for the date.

    Raises:
        ModelError: the template cannot be used.
    """
    tokens = TemplateTokens(
        variables=tokenizer.special.variables,
        special_texts=tokenizer.special_texts,
        end_of_turn_texts=tuple(tokenizer.token_text(token_id) for token_id in sorted(tokenizer.eos_token_ids)),
    )
    return ChatTemplate(_template_source(source) or CHATML, tokens, clock=clock)


def _from_folder(folder: Path) -> Tokenizer:
    backend = _backend(folder)
    config = _optional_json(folder / "tokenizer_config.json")
    names = {name: text for name in _VARIABLES if (text := _token_name(config.get(name))) is not None}
    special_map = _optional_json(folder / "special_tokens_map.json")
    names = {name: text for name in _VARIABLES if (text := _token_name(special_map.get(name))) is not None} | names
    generation, model = _optional_json(folder / "generation_config.json"), _optional_json(folder / "config.json")
    eos = {
        *_ids(generation.get("eos_token_id"), "generation_config.json"),
        *_ids(model.get("eos_token_id"), "config.json"),
    }
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    ends = [*filter(None, [names.get("eos_token")]), *(text for text in END_OF_TURN_NAMES if text in special)]
    eos |= {token_id for text in ends if (token_id := backend.token_to_id(text)) is not None}
    bos = backend.token_to_id(names["bos_token"]) if "bos_token" in names else None
    return Tokenizer(backend, SpecialTokens(frozenset(eos), bos, names))


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} holds no tokenizer.json",
            field="model",
            remedy="save the model's fast tokenizer there, or take a GGUF file of the model",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path} is damaged: {error}", remedy="download it again") from error
    _check_ids(backend, path)
    return backend


def _check_ids(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Refuse ids far beyond the number of tokens: the backend lists every id that is left out."""
    ids = backend.get_vocab(with_added_tokens=True).values()
    largest = max(ids, default=0)
    if largest >= 2 * len(ids) + _MOST_UNUSED_IDS:
        raise ModelError(f"{path} has {len(ids)} tokens, and one with the id {largest}", field="vocab")


def _template_source(source: ModelSource) -> str | None:
    match source.kind:
        case SourceKind.GGUF:
            template = GGUFFile(source.path).metadata.get("tokenizer.chat_template")
            return template if isinstance(template, str) else None
        case SourceKind.PREPARED:
            return _text_config(source.path).chat_template
        case SourceKind.FOLDER:
            return _folder_template(source.path)


def _folder_template(folder: Path) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{jinja} cannot be read: {error}", field="chat_template") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _optional_json(folder / name).get("chat_template")
        if isinstance(template, list):
            parts = [part for part in template if isinstance(part, Mapping) and isinstance(part.get("name"), str)]
            named = {part["name"]: part.get("template") for part in parts}
            template = named.get("tool_use") or named.get("default")
        if isinstance(template, str):
            return template
    return None


def _text_config(folder: Path) -> TextConfig:
    try:
        return msgspec.json.decode((folder / "text.json").read_bytes(), type=TextConfig)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{folder} is damaged: {error}", remedy="delete it; it is made again") from error


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_name(value: Any) -> str | None:
    """A token's text, written as itself or as an object with its ``content``."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) and content else None


def _ids(value: Any, where: str) -> Iterable[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) for one in values):
        raise ModelError(f"eos_token_id in {where} is {value!r}", field="eos_token_id")
    return values
