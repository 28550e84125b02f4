"""Tokenizers and templates as model folders hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessile.server.model.source import ModelSource, SourceKind
from sessile.server.text.chat_template import CHATML
from sessile.server.text.tokenizer import Tokenizer
from sessile.server.text.tokenizer_files import load_chat_template, load_tokenizer
from sessile.sessions.errors import ModelError


@pytest.fixture
def source(tmp_path: Path, byte_level: Tokenizer) -> ModelSource:
    byte_level._backend.save(str(tmp_path / "tokenizer.json"))
    return ModelSource("tiny", tmp_path, SourceKind.FOLDER)


def write(source: ModelSource, name: str, content: Any) -> None:
    (source.path / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_every_end_of_turn_token_is_found(source: ModelSource) -> None:
    plain = load_tokenizer(source)
    im_end, end_of_text = plain.token_id("<|im_end|>"), plain.token_id("<|endoftext|>")
    assert plain.eos_token_ids == {im_end, end_of_text}  # by their names
    write(source, "generation_config.json", {"eos_token_id": [5, 6]})
    write(source, "config.json", {"eos_token_id": 7})
    write(source, "tokenizer_config.json", {"eos_token": "t", "bos_token": {"content": "<|im_start|>"}})
    tokenizer = load_tokenizer(source)
    assert tokenizer.eos_token_ids == {5, 6, 7, im_end, end_of_text, tokenizer.token_id("t")}
    assert tokenizer.bos_token_id == tokenizer.token_id("<|im_start|>")
    assert tokenizer.special.variables == {"eos_token": "t", "bos_token": "<|im_start|>"}


def template_of(source: ModelSource) -> str:
    return load_chat_template(source, load_tokenizer(source)).source


def test_where_a_template_may_stand(source: ModelSource) -> None:
    assert template_of(source) == CHATML
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    write(source, "tokenizer_config.json", {"chat_template": named})
    assert template_of(source) == "t"
    write(source, "tokenizer_config.json", {"chat_template": "in the config"})
    assert template_of(source) == "in the config"
    write(source, "chat_template.json", {"chat_template": "in its own JSON"})
    assert template_of(source) == "in its own JSON"
    write(source, "chat_template.jinja", "in its own file")
    assert template_of(source) == "in its own file"


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path: Path, source: ModelSource) -> None:
    write(source, "tokenizer.json", "{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(source)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(ModelSource("none", tmp_path / "none", SourceKind.FOLDER))


def test_a_tokenizer_of_another_kind_is_named(source: ModelSource) -> None:
    parsed = json.loads((source.path / "tokenizer.json").read_text())
    write(source, "tokenizer.json", {**parsed, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}})
    with pytest.raises(ModelError, match="WordPiece") as caught:
        load_tokenizer(source)
    assert caught.value.field == "decoder"


def test_end_of_turn_ids_must_be_numbers(source: ModelSource) -> None:
    write(source, "generation_config.json", {"eos_token_id": ["<|im_end|>"]})
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source)
    assert caught.value.field == "eos_token_id"


def test_truncation_and_padding_of_a_tokenizer_json_are_switched_off(source: ModelSource) -> None:
    parsed = json.loads((source.path / "tokenizer.json").read_text())
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    write(source, "tokenizer.json", {**parsed, "truncation": truncation})
    text = "a text of more than two tokens"
    tokenizer = load_tokenizer(source)
    assert tokenizer.decode(tokenizer.encode(text, allow_special=False), skip_special=False) == text
