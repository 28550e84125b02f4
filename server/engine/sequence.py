"""One turn inside the engine: its tokens, how far they are computed, and what it holds of the cache."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from ...sessions.cache.prefix_cache import SequenceBlocks
from ...sessions.cache.token_key import pack_tokens
from .grammar_matcher import GrammarMatcher
from .messages import FinishReason, MissedTokens, SubmitTurn, TokenLogprobs, TokensBySource, TurnOutput, TurnUsage
from .token_counts import TokenCounts


class SequenceState(enum.Enum):
    PREPARING = "preparing"  # its grammar is being compiled
    WAITING = "waiting"
    LOADING = "loading"  # admitted; its blocks are being filled from a lower tier
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """The engine's view of a turn.

    ``num_computed`` tokens have their KV in the pool; a sequence whose ``num_computed`` is one less than its tokens
    decodes, one with more to compute prefills. Drafts are none of its tokens, and their KV does not count, until they
    are accepted. Times are seconds of the engine's clock.
    """

    def __init__(self, turn: SubmitTurn, max_tokens: int, arrival: float, order: int) -> None:
        self.turn = turn
        self.arrival = arrival
        self.order = order  # of arrival
        self.state = SequenceState.WAITING
        self.num_prompt_tokens = len(turn.token_ids)
        self.max_tokens = max_tokens
        self._token_ids: npt.NDArray[np.int32] = np.zeros(self.num_prompt_tokens + max_tokens, dtype=np.int32)
        self._token_ids[: self.num_prompt_tokens] = turn.token_ids
        self.num_tokens = self.num_prompt_tokens
        self.num_computed = 0
        self.held: SequenceBlocks | None = None
        end_of_turn = () if turn.sampling.ignore_eos else turn.eos_token_ids
        self.stop_token_ids = frozenset((*turn.sampling.stop_token_ids, *end_of_turn))
        self.finish_reason: FinishReason | None = None
        self.error = ""  # why it failed
        self.num_forced = 0  # tokens at the end that a grammar forced, not sampled
        self.grammar: GrammarMatcher | None = None
        self.counts = TokenCounts(self.token_ids) if turn.sampling.has_penalties else None
        self.adjusts_logits = turn.sampling.adjusts_logits
        # the scheduler's
        self.content_keys: list[bytes] = []  # of the whole blocks of its tokens but the last one, when it began to wait
        self.charged_level = 0  # the class in which its tokens count against its tenant
        self.num_charged = 0  # tokens that did so, or were cached
        # what usage will say
        self.cached_on_arrival = 0
        self.tokens_by_source: TokensBySource | None = None  # None until admitted for the first time
        self.reusable_tokens = 0
        self.missed = MissedTokens()
        self.admitted: float | None = None
        self.load_started = 0.0
        self.load_s = 0.0
        self.first_token: float | None = None
        self.preemptions = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        # not yet reported
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[TokenLogprobs] = []

    @property
    def turn_id(self) -> str:
        return self.turn.turn_id

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the token sampled last is to be computed, and what a grammar forced behind it."""
        return self.num_tokens - self.num_computed <= 1 + self.num_forced and self.num_tokens > self.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_tokens_left(self) -> int:
        """How many may still be sampled."""
        return self.max_tokens - self.num_output_tokens

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """All tokens so far, [num_tokens]; a view."""
        return self._token_ids[: self.num_tokens]

    def packed(self, start: int, stop: int) -> bytes:
        """The cache key of tokens ``start`` to ``stop``."""
        return pack_tokens(self._token_ids[start:stop])

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Add a sampled token; ends the turn where it is a stop token, the last one allowed, or the grammar's end."""
        self.num_forced = 0
        self._add(token_id)
        if logprobs is not None:
            self._new_logprobs.append(logprobs)

    def append_forced(self) -> int:
        """Add the tokens that the grammar forces now, without sampling, and return how many. Where log probabilities
        are wanted there is nothing to add: such tokens wait for their logits."""
        if self.grammar is None or self.turn.sampling.logprobs is not None:
            return 0
        while self.finish_reason is None and (token_id := self.grammar.forced) is not None:
            self._add(token_id)
            self.num_forced += 1
        return self.num_forced

    def fail(self, error: str) -> None:
        """End the turn with an error."""
        self.finish_reason, self.error = FinishReason.FAILED, error

    def _add(self, token_id: int) -> None:
        self._token_ids[self.num_tokens] = token_id
        self.num_tokens += 1
        self._new_token_ids.append(token_id)
        if self.counts is not None:
            self.counts.add(token_id)
        if self.grammar is not None:
            self.grammar.accept(token_id)
            if self.grammar.error:
                self.fail(f"the grammar could not be followed: {self.grammar.error}")
                return
        stops = token_id in self.stop_token_ids and self.num_output_tokens > self.turn.sampling.min_tokens
        if stops or (self.grammar is not None and self.grammar.ended):
            self.finish_reason = FinishReason.STOP
        elif self.num_output_tokens >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def take_output(self, now: float) -> TurnOutput | None:
        """What was not yet reported, with the usage if the turn has ended; None if there is nothing."""
        if not self._new_token_ids and self.finish_reason is None:
            return None
        output = TurnOutput(
            turn_id=self.turn_id,
            token_ids=self._new_token_ids,
            logprobs=self._new_logprobs if self.turn.sampling.logprobs is not None else None,
            finish_reason=self.finish_reason,
            usage=self._usage(now) if self.finish_reason is not None else None,
            error=self.error,
        )
        self._new_token_ids, self._new_logprobs = [], []
        return output

    def _usage(self, now: float) -> TurnUsage:
        admitted = self.admitted if self.admitted is not None else now
        first_token = self.first_token if self.first_token is not None else now
        return TurnUsage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_output_tokens,
            tokens_by_source=self.tokens_by_source or TokensBySource(computed=self.num_prompt_tokens),
            reusable_tokens=self.reusable_tokens,
            missed=self.missed,
            queue_s=admitted - self.arrival,
            load_s=self.load_s,
            prefill_s=first_token - admitted - self.load_s,
            decode_s=now - first_token,
            preemptions=self.preemptions,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )
