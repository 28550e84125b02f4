"""A workload's turns as other forms need them: their times, and their whole prompts as one text."""

from __future__ import annotations

import random

import msgspec

from ..workload.plan import BlocksPrompt, Message, MessagesPrompt, SessionPlan, TextPrompt, Turn
from ..workload.text import BlockTexts, made_up_text


def starts_of(session: SessionPlan, answer_s: float) -> list[float]:
    """When each turn starts, in seconds of the trace, if every answer takes ``answer_s``."""
    starts: list[float] = []
    for turn in session.turns:
        ready = max((starts[other] + answer_s for other in turn.after), default=session.arrival_s)
        starts.append(round(ready + turn.gap_s, 6))
    return starts


class Rendering:
    """The turns' whole prompts as texts; a conversation has plain role marks, its calls as JSON.

    Answers that were not recorded are made up, as long as they are to be.
    """

    def __init__(self, session: SessionPlan, texts: BlockTexts) -> None:
        self._session = session
        self._texts = texts
        self._conversations: list[str] = []  # of each turn, its answer included
        for index, turn in enumerate(session.turns):
            answer = f"assistant: {answer_text(session, index)}\n"
            whole = isinstance(turn.prompt, MessagesPrompt)
            self._conversations.append(self._asked(turn) + answer if whole else "")

    def prompt(self, index: int) -> str:
        """The whole prompt of a turn."""
        turn = self._session.turns[index]
        if isinstance(turn.prompt, BlocksPrompt):
            return self._texts.text(turn.prompt)
        return turn.prompt.text if isinstance(turn.prompt, TextPrompt) else self._asked(turn)

    def _asked(self, turn: Turn) -> str:
        assert isinstance(turn.prompt, MessagesPrompt)
        before = "" if turn.continues is None else self._conversations[turn.continues]
        return before + "".join(f"{message.role}: {said(message)}\n" for message in turn.prompt.messages)


def answer_text(session: SessionPlan, index: int) -> str:
    """What a turn answered, with its calls; made up where that was not recorded."""
    turn = session.turns[index]
    if turn.recorded is not None:
        return said(turn.recorded)
    return made_up_text(random.Random(f"answer/{session.session_id}/{index}"), turn.output_tokens or 1)


def said(message: Message) -> str:
    """A message's text and calls in one text."""
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else ""
    return "\n".join(piece for piece in (message.content, calls) if piece)


def new_messages(turn: Turn, texts: BlockTexts) -> tuple[Message, ...]:
    """What a turn adds, as messages: a prompt that is text or blocks is one message of the user."""
    match turn.prompt:
        case BlocksPrompt():
            return (Message("user", texts.text(turn.prompt)),)
        case TextPrompt():
            return (Message("user", turn.prompt.text),)
        case _:
            return turn.prompt.messages
