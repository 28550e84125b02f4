"""What clients send to ``/v1/sessions``, field by field. Any other field is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...sessions.errors import RequestError
from ...sessions.keeping import Hint, PersistencePolicy
from ...sessions.manager.requests import (
    AppendRequest,
    CloseRequest,
    ForkRequest,
    GenerateRequest,
    HintRequest,
    MessagesInput,
    OpenSession,
    ResumeRequest,
    RollbackRequest,
    SuspendRequest,
    TextInput,
    TokenIdsInput,
    ToolChoice,
    ToolChoiceMode,
    ToolResultInput,
    TurnInput,
)
from ...sessions.manager.validation import require_few_messages
from ...sessions.session import AtToken, AtTurn, Point
from ..engine.messages import Priority
from ..engine.sampling_params import SamplingParams
from .bodies import ChatMessage
from .turn_requests import message_of

RequestId = Annotated[
    str | None, Meta(description="The same request under the same id gets the same answer; at most 200 characters.")
]
Version = Annotated[
    Annotated[int, Meta(ge=0)] | None,
    Meta(description="Refuse unless the session is at this version; left out: do not check."),
]
PriorityName = Literal["interactive", "background", "batch"]


class OpenBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Open a session. ``tools`` in OpenAI's shape; ``persistence`` left out: as the server is configured."""

    model: Annotated[str | None, Meta(description="The served model's name or one of its aliases.")] = None
    system: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    persistence: PersistencePolicy | None = None
    request_id: RequestId = None

    def request(self, tenant: str) -> OpenSession:
        return OpenSession(
            tenant=tenant,
            model=self.model or None,
            system=self.system,
            tools=self.tools,
            persistence=self.persistence,
            request_id=self.request_id,
        )


class ChangeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every change may carry. The body itself may be left out."""

    expected_version: Version = None
    request_id: RequestId = None

    def change(self, session_id: str, tenant: str) -> dict[str, Any]:
        """What every request has."""
        return {
            "session_id": session_id,
            "tenant": tenant,
            "expected_version": self.expected_version,
            "request_id": self.request_id,
        }


class CloseBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Close a session."""

    def request(self, session_id: str, tenant: str) -> CloseRequest:
        return CloseRequest(**self.change(session_id, tenant))


class SuspendBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Suspend a session."""

    def request(self, session_id: str, tenant: str) -> SuspendRequest:
        return SuspendRequest(**self.change(session_id, tenant))


class ResumeBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Resume a session."""

    def request(self, session_id: str, tenant: str) -> ResumeRequest:
        return ResumeRequest(**self.change(session_id, tenant))


class HintBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A hint; its ``type`` says which: ``tool_wait``, ``retain``, ``will_branch``, ``expected_output``, ``final``."""

    hint: Hint

    def request(self, session_id: str, tenant: str) -> HintRequest:
        return HintRequest(**self.change(session_id, tenant), hint=self.hint)


class PointBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A point of the log: just after the answer of a turn (from 1), or after so many tokens. 0: its beginning."""

    turn: int | None = None
    token: int | None = None

    def point(self, field: str) -> Point:
        """The point. Raises RequestError unless exactly one is named."""
        if self.turn is not None and self.token is None:
            return AtTurn(self.turn)
        if self.token is not None and self.turn is None:
            return AtToken(self.token)
        raise RequestError("not one point is named", field=field, remedy="name a turn or a token")


class ForkBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fork a session; ``at`` left out: at the end of its log."""

    at: PointBody | None = None

    def request(self, session_id: str, tenant: str) -> ForkRequest:
        at = None if self.at is None else self.at.point("at")
        return ForkRequest(**self.change(session_id, tenant), at=at)


class RollbackBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Roll a session back."""

    to: PointBody

    def request(self, session_id: str, tenant: str) -> RollbackRequest:
        return RollbackRequest(**self.change(session_id, tenant), to=self.to.point("to"))


class ToolResultBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of one tool call."""

    tool_call_id: str
    content: str
    name: str | None = None


class InputBody(ChangeBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to add to the log: one of ``messages`` (OpenAI's shape), ``text``, ``token_ids`` and ``tool_result``."""

    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    tool_result: ToolResultBody | None = None
    priority: PriorityName = "interactive"

    def turn_input(self) -> TurnInput | None:
        """The input. Raises RequestError for more than one."""
        given = [name for name in ("messages", "text", "token_ids", "tool_result") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(f"both {given[0]} and {given[1]} are given", field=given[1], remedy="give one of them")
        if self.messages is not None:
            require_few_messages(self.messages, "messages")
            return MessagesInput(tuple(message_of(index, message) for index, message in enumerate(self.messages)))
        if self.text is not None:
            return TextInput(self.text)
        if self.token_ids is not None:
            return TokenIdsInput(self.token_ids)
        result = self.tool_result
        return None if result is None else ToolResultInput(result.tool_call_id, result.content, result.name)


class AppendBody(InputBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Add to the log and prefill, without an answer."""

    def request(self, session_id: str, tenant: str) -> AppendRequest:
        turn_input = self.turn_input()
        if turn_input is None:
            raise RequestError(
                "there is no input", field="input", remedy="send messages, text, token_ids or a tool_result"
            )
        return AppendRequest(
            **self.change(session_id, tenant), input=turn_input, priority=Priority[self.priority.upper()]
        )


class ToolChoiceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether the model calls tools; ``name``: which one; ``parallel``: more than one call at once."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str | None = None
    parallel: bool = True


class GenerateBody(InputBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Run a turn. Without input the log is answered as it is."""

    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoiceBody = ToolChoiceBody()
    stream: Annotated[bool, Meta(description="Answer with server-sent events as the tokens come.")] = False

    def request(self, session_id: str, tenant: str) -> GenerateRequest:
        choice = self.tool_choice
        try:
            self.sampling.validate()
        except RequestError as error:
            error.field = f"sampling.{error.field}"
            raise
        return GenerateRequest(
            **self.change(session_id, tenant),
            input=self.turn_input(),
            sampling=self.sampling,
            stop=self.stop,
            priority=Priority[self.priority.upper()],
            tool_choice=ToolChoice(mode=choice.mode, name=choice.name, parallel=choice.parallel),
        )


SessionBody = CloseBody | SuspendBody | ResumeBody | HintBody | ForkBody | RollbackBody | AppendBody | GenerateBody
