"""Hints, suspend and resume, between their wire form and values, both ways."""

from __future__ import annotations

from ...sessions.errors import RequestError
from ...sessions.keeping import (
    ExpectedOutput,
    Final,
    Hint,
    Retain,
    ToolWait,
    WillBranch,
)
from ...sessions.manager.requests import (
    HintOutcome,
    HintRequest,
    HintVerdict,
    Resumed,
    ResumeRequest,
    Suspended,
    SuspendRequest,
    TokensByTier,
)
from . import session_pb2 as pb
from .changes import read_change, write_change
from .views import read_session, write_session

WIRE_VERDICTS = {
    HintVerdict.ACCEPTED: pb.HINT_OUTCOME_ACCEPTED,
    HintVerdict.CLIPPED: pb.HINT_OUTCOME_CLIPPED,
    HintVerdict.REJECTED: pb.HINT_OUTCOME_REJECTED,
}
VERDICTS = {wire: verdict for verdict, wire in WIRE_VERDICTS.items()}


def read_hint_request(message: pb.HintRequest, tenant: str) -> HintRequest:
    return HintRequest(**read_change(message, tenant), hint=_read_hint(message.hint))


def write_hint_request(request: HintRequest) -> pb.HintRequest:
    message = pb.HintRequest(hint=_write_hint(request.hint))
    write_change(message, request)
    return message


def _read_hint(message: pb.Hint) -> Hint:
    match message.WhichOneof("kind"):
        case "tool_wait":
            wait = message.tool_wait
            return ToolWait(
                tool=wait.tool,
                p50_s=wait.p50_seconds if wait.HasField("p50_seconds") else None,
                p95_s=wait.p95_seconds if wait.HasField("p95_seconds") else None,
            )
        case "retain":
            retain = message.retain
            ttl_s = retain.ttl_seconds if retain.HasField("ttl_seconds") else None
            return Retain(ttl_s=ttl_s, priority=retain.priority, hard=retain.hard)
        case "will_branch":
            return WillBranch(branches=message.will_branch.branches)
        case "expected_output":
            return ExpectedOutput(text=message.expected_output.text)
        case "final":
            return Final()
        case _:
            raise RequestError("no hint is given", field="hint", remedy="give one kind of hint")


def _write_hint(hint: Hint) -> pb.Hint:
    match hint:
        case ToolWait():
            return pb.Hint(tool_wait=pb.ToolWait(tool=hint.tool, p50_seconds=hint.p50_s, p95_seconds=hint.p95_s))
        case Retain():
            return pb.Hint(retain=pb.Retain(ttl_seconds=hint.ttl_s, priority=hint.priority, hard=hint.hard))
        case WillBranch():
            return pb.Hint(will_branch=pb.WillBranch(branches=hint.branches))
        case ExpectedOutput():
            return pb.Hint(expected_output=pb.ExpectedOutput(text=hint.text))
        case Final():
            return pb.Hint(final=pb.Final())


def write_hint_outcome(outcome: HintOutcome) -> pb.HintResponse:
    return pb.HintResponse(
        outcome=WIRE_VERDICTS[outcome.verdict],
        reason=outcome.reason,
        pinned_tokens=outcome.pinned_tokens,
        expires_in_seconds=outcome.expires_in_s,
    )


def read_hint_outcome(message: pb.HintResponse) -> HintOutcome:
    return HintOutcome(
        verdict=VERDICTS.get(message.outcome, HintVerdict.REJECTED),
        reason=message.reason,
        pinned_tokens=message.pinned_tokens,
        expires_in_s=message.expires_in_seconds if message.HasField("expires_in_seconds") else None,
    )


def read_suspend_request(message: pb.SuspendRequest, tenant: str) -> SuspendRequest:
    return SuspendRequest(**read_change(message, tenant))


def write_suspend_request(request: SuspendRequest) -> pb.SuspendRequest:
    message = pb.SuspendRequest()
    write_change(message, request)
    return message


def write_suspended(suspended: Suspended) -> pb.SuspendResponse:
    return pb.SuspendResponse(
        session=write_session(suspended.session),
        tokens_by_tier=_write_tiers(suspended.tokens_by_tier),
        device_blocks_freed=suspended.device_blocks_freed,
    )


def read_suspended(message: pb.SuspendResponse) -> Suspended:
    return Suspended(
        session=read_session(message.session),
        tokens_by_tier=_read_tiers(message.tokens_by_tier),
        device_blocks_freed=message.device_blocks_freed,
    )


def read_resume_request(message: pb.ResumeRequest, tenant: str) -> ResumeRequest:
    return ResumeRequest(**read_change(message, tenant))


def write_resume_request(request: ResumeRequest) -> pb.ResumeRequest:
    message = pb.ResumeRequest()
    write_change(message, request)
    return message


def write_resumed(resumed: Resumed) -> pb.ResumeResponse:
    estimate = pb.ResumeEstimate(
        tokens_by_tier=_write_tiers(resumed.tokens_by_tier),
        tokens_to_compute=resumed.tokens_to_compute,
        seconds=resumed.seconds,
        prefetching=resumed.prefetching,
    )
    return pb.ResumeResponse(session=write_session(resumed.session), estimate=estimate)


def read_resumed(message: pb.ResumeResponse) -> Resumed:
    estimate = message.estimate
    return Resumed(
        session=read_session(message.session),
        tokens_by_tier=_read_tiers(estimate.tokens_by_tier),
        tokens_to_compute=estimate.tokens_to_compute,
        seconds=estimate.seconds,
        prefetching=estimate.prefetching,
    )


def _write_tiers(tokens: TokensByTier) -> pb.TokensByTier:
    return pb.TokensByTier(device=tokens.device, host=tokens.host, disk=tokens.disk, shared=tokens.shared)


def _read_tiers(message: pb.TokensByTier) -> TokensByTier:
    return TokensByTier(device=message.device, host=message.host, disk=message.disk, shared=message.shared)
