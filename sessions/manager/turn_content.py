"""What a turn was asked, as a request body: for those who explain misses and write traces, never for the model."""

from __future__ import annotations

from typing import Any

import msgspec

from ..session import NewEntry, Session, SessionLog
from .prompts import as_template_message
from .requests import CompletionRequest, MessagesInput, TextInput, TokenIdsInput

Body = dict[str, Any]


def content_of_request(request: CompletionRequest) -> Body:
    """The body as it was sent; of a request that came otherwise, one that says the same."""
    if request.sent_body and not isinstance(request.prompt, TokenIdsInput):
        return msgspec.json.decode(request.sent_body, type=dict[str, Any])
    body: Body = {"model": request.model} if request.model else {}
    match request.prompt:
        case MessagesInput(messages):
            body["messages"] = [as_template_message(message) for message in messages]
        case TextInput(text):
            body["prompt"] = text
        case TokenIdsInput(token_ids):
            body["prompt_token_ids"] = list(token_ids)
    return body | ({"tools": list(request.tools)} if request.tools else {})


def content_of_session(session: Session, log: SessionLog, entry: NewEntry | None) -> Body:
    """A session's messages so far and those of ``entry``; its tokens where it is no conversation."""
    said = [message for part in log.parts for message in part.entry.messages]
    said += entry.messages if entry is not None else ()
    messages = [as_template_message(message) for message in said]
    if not messages:
        return {"prompt_token_ids": log.token_ids() + list(entry.token_ids if entry is not None else ())}
    if session.system is not None:
        messages.insert(0, {"role": "system", "content": session.system})
    body: Body = {"model": session.model.name, "messages": messages}
    return body | ({"tools": list(session.tools)} if session.tools else {})
