"""Tools for chat templates that know none: told in the system message, and calls written into the text of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .answer_format import AnswerFormat

_KNOWS_TOOLS = re.compile(r"\btools\b")
TemplateMessage = dict[str, Any]


class ToolsInText:
    """Writes tools and calls into messages, unless the template with this ``source`` does so itself."""

    def __init__(self, source: str, answer_format: AnswerFormat) -> None:
        self._form = None if _KNOWS_TOOLS.search(source) else answer_format.plain_form

    def opening(self, messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
        """The messages of a conversation from its beginning, with what the template would leave out."""
        written = self.following(messages)
        if self._form is None or not tools:
            return written
        told = self._told(tools)
        if written and written[0]["role"] == "system":
            told = "\n\n".join(part for part in (written[0]["content"], told) if part)
            written = written[1:]
        return [{"role": "system", "content": told}, *written]

    def following(self, messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
        """Messages in the middle of a conversation, with what the template would leave out."""
        return [self._with_calls(message) for message in messages]

    def _told(self, tools: Sequence[Mapping[str, Any]]) -> str:
        assert self._form is not None
        functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        example = self._form.written("name", "{…}")
        return f"You can call these functions:\n{functions}\n\nTo call one, answer with nothing but\n{example}"

    def _with_calls(self, message: TemplateMessage) -> TemplateMessage:
        calls = message.get("tool_calls")
        if self._form is None or not calls:
            return message
        written = [self._form.written(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        text = [message["content"]] if message["content"] else []
        content = "\n".join([*text, self._form.opening + self._form.between.join(written) + self._form.closing])
        return {**message, "content": content}
