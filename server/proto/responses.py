"""Answers of the session API, between values and their wire form; the server writes, the client reads."""

from __future__ import annotations

from ...sessions.manager.requests import Appended, SessionPage
from ...sessions.manager.turn_events import StopCause, TextDelta, TurnEvent, TurnFinished
from ...sessions.messages import ToolCall
from ..engine.messages import FinishReason, TokenLogprobs
from ..text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from . import session_pb2 as pb
from .usage import read_miss, read_usage, write_miss, write_usage
from .views import read_session, write_session

WIRE_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
}
REASONS = {wire: reason for reason, wire in WIRE_REASONS.items()}
_WIRE_CAUSES = {
    StopCause.END_OF_TURN: pb.STOP_CAUSE_END_OF_TURN,
    StopCause.STOP_TOKEN: pb.STOP_CAUSE_STOP_TOKEN,
    StopCause.STOP_STRING: pb.STOP_CAUSE_STOP_STRING,
    StopCause.LENGTH: pb.STOP_CAUSE_LENGTH,
    StopCause.TOOL_CALL: pb.STOP_CAUSE_TOOL_CALL,
}
_CAUSES = {wire: cause for cause, wire in _WIRE_CAUSES.items()}


def write_page(page: SessionPage) -> pb.ListResponse:
    return pb.ListResponse(
        sessions=[write_session(view) for view in page.sessions], next_page_token=page.next_page_token
    )


def read_page(message: pb.ListResponse) -> SessionPage:
    return SessionPage(
        sessions=tuple(read_session(session) for session in message.sessions),
        next_page_token=message.next_page_token,
    )


def write_appended(appended: Appended) -> pb.AppendResponse:
    return pb.AppendResponse(
        session=write_session(appended.session),
        tokens_committed=appended.tokens_committed,
        usage=write_usage(appended.usage),
    )


def read_appended(message: pb.AppendResponse) -> Appended:
    return Appended(
        session=read_session(message.session),
        tokens_committed=message.tokens_committed,
        usage=read_usage(message.usage),
    )


def write_event(event: TurnEvent) -> pb.GenerateResponse:
    match event:
        case TextDelta():
            return pb.GenerateResponse(delta=_write_delta(event))
        case ReasoningDelta(text=text):
            return pb.GenerateResponse(reasoning=pb.ReasoningDelta(text=text))
        case ToolCallStarted(index=index, id=call_id, name=name):
            return pb.GenerateResponse(tool_call_started=pb.ToolCallStarted(index=index, id=call_id, name=name))
        case ToolCallArguments(index=index, fragment=fragment):
            return pb.GenerateResponse(tool_call_arguments=pb.ToolCallArguments(index=index, fragment=fragment))
        case MalformedCall(text=text, reason=reason, index=void):
            return pb.GenerateResponse(malformed_call=pb.MalformedCall(text=text, reason=reason, index=void))
        case TurnFinished():
            return pb.GenerateResponse(finished=write_finished(event))


def read_event(message: pb.GenerateResponse, session_id: str) -> TurnEvent | None:
    """The event; None for a kind that this version does not know."""
    match message.WhichOneof("event"):
        case "delta":
            return _read_delta(message.delta)
        case "finished":
            return read_finished(message.finished, session_id)
        case "reasoning":
            return ReasoningDelta(text=message.reasoning.text)
        case "tool_call_started":
            started = message.tool_call_started
            return ToolCallStarted(index=started.index, id=started.id, name=started.name)
        case "tool_call_arguments":
            arguments = message.tool_call_arguments
            return ToolCallArguments(index=arguments.index, fragment=arguments.fragment)
        case "malformed_call":
            malformed = message.malformed_call
            void = malformed.index if malformed.HasField("index") else None
            return MalformedCall(text=malformed.text, reason=malformed.reason, index=void)
        case _:
            return None


def _write_delta(delta: TextDelta) -> pb.TextDelta:
    return pb.TextDelta(
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[
            pb.TokenLogprobs(logprob=one.logprob, top_token_ids=one.top_token_ids, top_logprobs=one.top_logprobs)
            for one in delta.logprobs
        ],
    )


def _read_delta(delta: pb.TextDelta) -> TextDelta:
    return TextDelta(
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        logprobs=tuple(
            TokenLogprobs(one.logprob, tuple(one.top_token_ids), tuple(one.top_logprobs)) for one in delta.logprobs
        ),
    )


def write_finished(finished: TurnFinished) -> pb.TurnFinished:
    return pb.TurnFinished(
        finish_reason=WIRE_REASONS[finished.finish_reason],
        stop_cause=_WIRE_CAUSES[finished.stop_cause],
        usage=write_usage(finished.usage),
        version=finished.version,
        turn=finished.turn,
        num_tokens=finished.num_tokens,
        tokens_committed=finished.tokens_committed,
        replayed=finished.replayed,
        tool_calls=[
            pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments) for call in finished.tool_calls
        ],
        reasoning_tokens=finished.reasoning_tokens,
        miss=None if finished.miss is None else write_miss(finished.miss),
    )


def read_finished(finished: pb.TurnFinished, session_id: str) -> TurnFinished:
    reason = REASONS.get(finished.finish_reason, FinishReason.STOP)
    return TurnFinished(
        finish_reason=reason,
        stop_cause=_CAUSES.get(finished.stop_cause, StopCause.END_OF_TURN),
        usage=read_usage(finished.usage),
        session_id=session_id,
        version=finished.version,
        turn=finished.turn,
        num_tokens=finished.num_tokens,
        tokens_committed=finished.tokens_committed,
        replayed=finished.replayed,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.arguments_json) for call in finished.tool_calls
        ),
        reasoning_tokens=finished.reasoning_tokens,
        miss=read_miss(finished.miss) if finished.HasField("miss") else None,
    )
