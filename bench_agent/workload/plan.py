"""A workload: sessions, each a tree of turns with an order in time.

A turn's *context* and its *place in time* are two things: ``continues`` names the turn whose conversation it goes on
(two turns that continue one turn are a fork; one that continues an older turn than the last is a rollback; None starts
from nothing, as a sub-agent does), and ``after`` names the turns that must be over before it starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from ..errors import BenchError

MOST_TOKENS = 10_000_000  # of one prompt or answer: more is a slip, and nobody could make up its text
MOST_SECONDS = 1e9  # that anything is waited for: thirty years


class ToolCall(msgspec.Struct, frozen=True):
    """A call in an assistant's message. ``arguments`` is JSON as text."""

    id: str
    name: str
    arguments: str = "{}"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class MessagesPrompt(msgspec.Struct, frozen=True, tag="messages"):
    """New messages, after those of the turn that is continued."""

    messages: tuple[Message, ...]


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """The whole prompt as one text, sent without a chat template."""

    text: str


class BlocksPrompt(msgspec.Struct, frozen=True, tag="blocks"):
    """The whole prompt as ids of blocks of tokens; equal ids in one ``namespace`` stand for equal text."""

    hash_ids: tuple[int, ...]
    block_tokens: int
    num_tokens: int
    namespace: str = ""


Prompt = MessagesPrompt | TextPrompt | BlocksPrompt


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Indexes are places in the session's ``turns`` and always point backwards.

    ``gap_s``: seconds between the end of the last turn of ``after`` and this one's start (the agent's tools run).
    ``output_tokens``: how long the answer is (None: as long as the server likes, up to the run's bound).
    """

    prompt: Prompt
    continues: int | None = None
    after: tuple[int, ...] = ()
    gap_s: float = 0.0
    output_tokens: int | None = None
    recorded: Message | None = None
    agent: str = "main"


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session. ``arrival_s`` counts from the first session of the trace.

    ``unrecorded_tokens``: tokens of system prompt and tools that the server saw and the trace does not hold.
    """

    session_id: str
    turns: tuple[Turn, ...]
    arrival_s: float = 0.0
    tools: tuple[dict[str, object], ...] = ()
    unrecorded_tokens: int = 0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions and where they came from. ``notes``: what was left out or made up, in sentences."""

    name: str
    format: str
    sessions: tuple[SessionPlan, ...]
    source_sha256: str = ""
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def num_turns(self) -> int:
        """Turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)

    def sha256(self) -> str:
        """The hash of what is sent: equal for equal sessions, whatever file they came from."""
        digest = hashlib.sha256()
        for session in self.sessions:
            digest.update(msgspec.json.encode(_as_hashed(session)))
            digest.update(b"\n")
        return digest.hexdigest()


def _as_hashed(session: SessionPlan) -> dict[str, object]:
    """A session's fields in their order, the same for equal sessions.

    What the encoder omits as a default it knows by identity, not by value, for numbers and texts that are computed.
    """
    told: dict[str, object] = {
        name: value for name, value in msgspec.to_builtins(session).items() if name != "arrival_s" or session.arrival_s
    }
    turns: list[dict[str, object]] = []
    for turn in session.turns:
        fields = {"gap_s": turn.gap_s, **msgspec.to_builtins(turn)}
        if turn.agent == "main":
            fields.pop("agent", None)
        turns.append({name: fields[name] for name in Turn.__struct_fields__ if name in fields})
    told["turns"] = turns
    return told


def check_session(session: SessionPlan) -> None:
    """Raises BenchError for a session without turns, an empty prompt or an impossible number, when a turn points
    forwards, and when one continues a turn that need not be over before it.
    """
    if not session.turns:
        raise BenchError(f"session {session.session_id!r} has no turns")
    if not 0 <= session.arrival_s <= MOST_SECONDS:
        raise BenchError(f"session {session.session_id!r}: arrival_s has to be from 0 to {MOST_SECONDS:,.0f}")
    if not 0 <= session.unrecorded_tokens <= MOST_TOKENS:
        raise BenchError(f"session {session.session_id!r}: unrecorded_tokens has to be from 0 to {MOST_TOKENS:,}")
    before: list[int] = []
    for index, turn in enumerate(session.turns):
        where = f"turn {index} of session {session.session_id!r}"
        _check_numbers(turn, where)
        if not _says_something(turn.prompt):
            raise BenchError(f"{where} has an empty prompt")
        wrong = [other for other in turn.after if not 0 <= other < index]
        if wrong:
            raise BenchError(f"{where} comes after turn {wrong[0]}, which is not before it")
        before.append(_over_before(turn, before))
        if turn.continues is not None and not (turn.continues >= 0 and before[index] >> turn.continues & 1):
            raise BenchError(f"{where} continues turn {turn.continues}, which need not be over by then")
        if turn.continues is not None and not isinstance(turn.prompt, MessagesPrompt):
            raise BenchError(f"{where} continues another and has a whole prompt")


def over_before(session: SessionPlan) -> list[int]:
    """For each turn, what is over before it starts: a number whose bit ``i`` stands for turn ``i``."""
    before: list[int] = []
    for turn in session.turns:
        before.append(_over_before(turn, before))
    return before


def _over_before(turn: Turn, before: list[int]) -> int:
    over = 0
    for other in turn.after:
        over |= before[other] | 1 << other
    return over


def _says_something(prompt: Prompt) -> bool:
    match prompt:
        case MessagesPrompt():
            return bool(prompt.messages)
        case TextPrompt():
            return bool(prompt.text)
        case _:
            return True


def _check_numbers(turn: Turn, where: str) -> None:
    if not 0 <= turn.gap_s <= MOST_SECONDS:
        raise BenchError(f"{where}: gap_s has to be from 0 to {MOST_SECONDS:,.0f}")
    if turn.output_tokens is not None and not 1 <= turn.output_tokens <= MOST_TOKENS:
        raise BenchError(f"{where}: output_tokens has to be from 1 to {MOST_TOKENS:,}")
    if isinstance(turn.prompt, BlocksPrompt) and not (
        turn.prompt.block_tokens >= 1 and 1 <= turn.prompt.num_tokens <= MOST_TOKENS
    ):
        raise BenchError(f"{where}: block_tokens and num_tokens have to be from 1 to {MOST_TOKENS:,}")


def whole_conversations(session: SessionPlan) -> Iterator[tuple[Turn, tuple[Message, ...]]]:
    """Each turn with its whole conversation: recorded answers where there are any, else an empty answer.

    Turns whose prompt is text or blocks have one user message's worth of conversation: none is yielded for blocks.
    """
    histories: list[tuple[Message, ...]] = []
    for turn in session.turns:
        if isinstance(turn.prompt, MessagesPrompt):
            before = () if turn.continues is None else histories[turn.continues]
            messages = before + turn.prompt.messages
        elif isinstance(turn.prompt, TextPrompt):
            messages = (Message("user", turn.prompt.text),)
        else:
            messages = ()
        yield turn, messages
        answer = turn.recorded or Message("assistant", "")
        histories.append((*messages, answer))
