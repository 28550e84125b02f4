"""Summaries of turns between their wire form and values, both ways."""

from __future__ import annotations

from ...sessions.manager.turn_events import TurnSummary
from . import session_pb2 as pb
from .responses import REASONS, WIRE_REASONS
from .usage import read_miss, read_usage, write_miss, write_usage
from .views import read_time, write_time


def write_turn(turn: TurnSummary) -> pb.TurnSummary:
    return pb.TurnSummary(
        turn=turn.turn,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        num_tokens=turn.num_tokens,
        finished_at=None if turn.finished_at is None else write_time(turn.finished_at),
        usage=None if turn.usage is None else write_usage(turn.usage),
        finish_reason=pb.FINISH_REASON_UNSPECIFIED if turn.finish_reason is None else WIRE_REASONS[turn.finish_reason],
        miss=None if turn.miss is None else write_miss(turn.miss),
    )


def read_turn(message: pb.TurnSummary) -> TurnSummary:
    return TurnSummary(
        turn=message.turn,
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        num_tokens=message.num_tokens,
        finished_at=read_time(message.finished_at) if message.HasField("finished_at") else None,
        usage=read_usage(message.usage) if message.HasField("usage") else None,
        finish_reason=REASONS.get(message.finish_reason),
        miss=read_miss(message.miss) if message.HasField("miss") else None,
    )
