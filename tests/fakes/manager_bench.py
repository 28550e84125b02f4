"""A session manager over a scripted engine, with a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byte_text import byte_tokenizer, chatml_template
from scripted_engine import ScriptedEngine

from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.text.chat_template import ChatTemplate
from sessile.server.text.tokenizer import Tokenizer
from sessile.sessions.manager import (
    CompletionRequest,
    GenerateRequest,
    MessagesInput,
    OpenSession,
    SessionManager,
    SessionView,
    TextDelta,
    TurnFinished,
)
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import SessionLog
from sessile.sessions.store import SessionStore

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class Bench:
    """The manager and what is around it, with short ways to use it."""

    folder: Path
    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    clock: Clock = field(default_factory=Clock)
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    template: ChatTemplate = field(default_factory=chatml_template)

    def start(self) -> None:
        self.store = SessionStore(self.folder)
        self.manager = SessionManager(
            self.store, self.engine, self.tokenizer, self.template, clock=self.clock, steady=self.clock
        )

    def stop(self) -> None:
        self.manager.shutdown()
        self.store.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    async def open(self, **fields: Any) -> SessionView:
        return await self.manager.open(OpenSession(**fields))

    async def say(self, session_id: str, text: str | None = None, **fields: Any) -> tuple[str, TurnFinished]:
        """One turn: what the user says, None for nothing; gives the answer's text and the turn's end."""
        turn_input = None if text is None else MessagesInput((user(text),))
        fields = {"input": turn_input, "sampling": GREEDY} | fields
        return await collected(self.manager.generate(GenerateRequest(session_id=session_id, **fields)))

    async def complete(self, messages: list[Message], **fields: Any) -> tuple[str, TurnFinished]:
        fields = {"sampling": GREEDY} | fields
        return await collected(
            self.manager.complete(CompletionRequest(prompt=MessagesInput(tuple(messages)), **fields))
        )

    async def log(self, session_id: str) -> SessionLog:
        session = await self.store.session(session_id)
        assert session is not None
        return await self.store.log(session.place)

    async def text(self, session_id: str) -> str:
        """The session's whole log as text, special tokens shown."""
        return self.shown((await self.log(session_id)).token_ids())

    def shown(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special=False)

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, allow_special=True)


async def collected(events: Any) -> tuple[str, TurnFinished]:
    text, finished = [], None
    async for event in events:
        if isinstance(event, TextDelta):
            assert finished is None
            text.append(event.text)
        elif isinstance(event, TurnFinished):
            finished = event
    assert finished is not None
    return "".join(text), finished


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)
