"""What the engine can be asked to run, checked before it is sent."""

from __future__ import annotations

from collections.abc import Collection

from ...sessions.errors import ContextOverflow, RequestError
from .messages import EngineReady, SubmitTurn


def check_turn(turn: SubmitTurn, engine: EngineReady) -> None:
    """Check a turn against the context and the vocabulary of ``engine``.

    Raises:
        RequestError: the prompt is empty, a token id does not exist, or a sampling parameter is out of range; it names
            the field.
        ContextOverflow: the prompt leaves no room for a token.
    """
    turn.sampling.validate()
    if not turn.token_ids:
        raise RequestError("the prompt is empty", field="prompt", remedy="give at least one token")
    if len(turn.token_ids) >= engine.context_length:
        raise ContextOverflow(
            f"the prompt has {len(turn.token_ids)} tokens, the context holds {engine.context_length}",
            limit=engine.context_length,
            field="prompt",
            remedy="shorten it; at least one token must be left to generate",
        )
    stops = (*turn.sampling.stop_token_ids, *turn.eos_token_ids)
    _check_ids(turn.token_ids, engine.vocab_size, "a token id", "token_ids")
    _check_ids(turn.sampling.logit_bias, engine.vocab_size, "a token id", "logit_bias")
    _check_ids(stops, engine.vocab_size, "a stop token id", "stop_token_ids")


def _check_ids(token_ids: Collection[int], vocab_size: int, what: str, field: str) -> None:
    lowest, highest = min(token_ids, default=0), max(token_ids, default=0)
    if lowest < 0 or highest >= vocab_size:
        raise RequestError(f"{what} is outside of the vocabulary", field=field, remedy=f"use 0 to {vocab_size - 1}")
