"""What turns cost and why, between wire form and values, both ways."""

from __future__ import annotations

from ...sessions.manager.turn_events import Miss
from ..engine.messages import MissedTokens, TokensBySource, TurnUsage
from . import session_pb2 as pb

WIRE_CAUSES = {
    "evicted": pb.MISS_CAUSE_EVICTED,
    "expired": pb.MISS_CAUSE_EXPIRED,
    "other_engine": pb.MISS_CAUSE_OTHER_ENGINE,
    "cheaper_to_compute": pb.MISS_CAUSE_CHEAPER_TO_COMPUTE,
    "load_failed": pb.MISS_CAUSE_LOAD_FAILED,
    "no_room": pb.MISS_CAUSE_NO_ROOM,
}
CAUSES = {wire: name for name, wire in WIRE_CAUSES.items()}


def write_usage(usage: TurnUsage) -> pb.Usage:
    source = usage.tokens_by_source
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        prompt_tokens_by_source=pb.TokensBySource(
            device=source.device,
            host=source.host,
            disk=source.disk,
            shared=source.shared,
            in_flight=source.in_flight,
            computed=source.computed,
        ),
        queue_seconds=usage.queue_s,
        load_seconds=usage.load_s,
        prefill_seconds=usage.prefill_s,
        decode_seconds=usage.decode_s,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        preemptions=usage.preemptions,
        reusable_tokens=usage.reusable_tokens,
        missed=[
            pb.MissedTokens(cause=cause, tokens=tokens)
            for name, cause in WIRE_CAUSES.items()
            if (tokens := getattr(usage.missed, name))
        ],
    )


def read_usage(message: pb.Usage) -> TurnUsage:
    source = message.prompt_tokens_by_source
    return TurnUsage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        tokens_by_source=TokensBySource(
            device=source.device,
            host=source.host,
            disk=source.disk,
            shared=source.shared,
            in_flight=source.in_flight,
            computed=source.computed,
        ),
        queue_s=message.queue_seconds,
        load_s=message.load_seconds,
        prefill_s=message.prefill_seconds,
        decode_s=message.decode_seconds,
        drafted_tokens=message.drafted_tokens,
        accepted_tokens=message.accepted_tokens,
        preemptions=message.preemptions,
        reusable_tokens=message.reusable_tokens,
        missed=MissedTokens(**{CAUSES[part.cause]: part.tokens for part in message.missed if part.cause in CAUSES}),
    )


def write_miss(miss: Miss) -> pb.Miss:
    return pb.Miss(
        rule=miss.rule,
        name=miss.name,
        explanation=miss.explanation,
        remedy=miss.remedy,
        lost_tokens=miss.lost_tokens,
        first_divergent_token=miss.first_divergent_token,
        path=miss.path or "",
        char=miss.char,
        was=miss.was,
        now=miss.now,
    )


def read_miss(message: pb.Miss) -> Miss:
    return Miss(
        rule=message.rule,
        name=message.name,
        explanation=message.explanation,
        remedy=message.remedy,
        lost_tokens=message.lost_tokens,
        first_divergent_token=message.first_divergent_token if message.HasField("first_divergent_token") else None,
        path=message.path or None,
        char=message.char if message.HasField("char") else None,
        was=message.was if message.HasField("was") else None,
        now=message.now if message.HasField("now") else None,
    )
