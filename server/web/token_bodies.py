"""What ``/tokenize`` and ``/detokenize`` take and answer, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from .bodies import ChatMessage, Int, On


class TokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /tokenize``: ``prompt``, or ``messages`` as the chat template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: On = UNSET
    add_generation_prompt: On = UNSET
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[Int]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is to the model. ``token_strs``: the text of each token, if that was asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens; bytes that are no UTF-8 become U+FFFD."""

    prompt: str
