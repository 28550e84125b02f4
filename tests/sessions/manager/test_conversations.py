"""Conversations that clients send whole become sessions, are found again after a restart, and branch."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from byte_text import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from manager_bench import GREEDY, Bench, collected, user
from scripted_engine import ScriptedEngine

from sessile.sessions.errors import SessionBusy
from sessile.sessions.keeping import Retain
from sessile.sessions.manager import (
    CloseRequest,
    CompletionRequest,
    GenerateRequest,
    MessagesInput,
    SessionManager,
    TextInput,
    TurnFinished,
)
from sessile.sessions.manager.requests import Client
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import Head, Place
from sessile.sessions.store import SessionStore
from sessile.sessions.store.conversations import StoredConversation, find_conversation, write_conversation


def assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


async def submitted(bench: Bench) -> list[int]:
    return bench.engine.submitted[-1].token_ids


async def test_a_conversation_is_one_session_also_after_a_restart(bench: Bench) -> None:
    """LMCache #562 and its like: what was computed before a restart is named by the same tokens after it."""
    said, messages, ends = "", [user("a")], []
    for question in "bcd":
        said, finished = await bench.complete(messages)
        ends.append(finished)
        messages += [assistant(said), user(question)]
        bench.restart()
    assert len({end.session_id for end in ends}) == 1
    log = await bench.log(ends[0].session_id)
    assert log.token_ids()[: ends[1].num_tokens] == bench.engine.submitted[2].token_ids[: ends[1].num_tokens]
    told = [message for part in log.parts for message in part.entry.messages]
    assert told == [*messages[:-1]]
    assert bench.engine.submitted[2].owner == ends[0].session_id


async def test_it_is_continued_by_grpc(bench: Bench) -> None:
    said, one = await bench.complete([user("a")])
    _, two = await bench.say(one.session_id, "b")
    assert (two.turn, two.session_id) == (2, one.session_id)
    assert bench.shown(await submitted(bench)).startswith(
        f"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{said}"
    )


async def test_a_conversation_that_went_on_elsewhere_branches(bench: Bench) -> None:
    said, one = await bench.complete([user("a")])
    ends = [(await bench.complete([user("a"), assistant(said), user(question)]))[1] for question in "bcb"]
    assert ends[0].session_id == one.session_id
    assert len({end.session_id for end in ends}) == 3
    fork = await bench.manager.get(ends[1].session_id)
    assert fork.parent_session_id == one.session_id
    assert {end.usage.tokens_by_source.cached >= one.num_tokens for end in ends} == {True}


async def test_parallel_requests_branch_instead_of_failing(bench: Bench) -> None:
    said, one = await bench.complete([user("a")])
    gate = asyncio.Event()
    for _ in range(2):
        bench.engine.will_say([64, 65, 257], gate=gate)
    history = [user("a"), assistant(said)]
    running = [asyncio.ensure_future(bench.complete([*history, user(text)])) for text in "xy"]
    while len(bench.engine.running) < 2:
        await asyncio.sleep(0)
    gate.set()
    ends = [end for _, end in await asyncio.gather(*running)]
    assert {end.turn for end in ends} == {2}
    assert len({end.session_id for end in ends}) == 2
    assert one.session_id in {end.session_id for end in ends}


async def test_a_closed_session_is_left_alone(bench: Bench) -> None:
    said, one = await bench.complete([user("a")])
    await bench.manager.close(CloseRequest(session_id=one.session_id))
    _, two = await bench.complete([user("a"), assistant(said), user("b")])
    assert two.session_id != one.session_id
    assert two.usage.tokens_by_source.cached >= one.num_tokens - 1  # memory has the tokens yet


async def test_a_session_that_must_be_taken(bench: Bench) -> None:
    session = await bench.open()
    said, one = await bench.complete([user("a")], session_id=session.session_id)
    assert (one.session_id, one.turn) == (session.session_id, 1)
    _, two = await bench.complete([user("a"), assistant(said), user("b")], session_id=session.session_id)
    assert (two.session_id, two.turn) == (session.session_id, 2)
    _, other = await bench.complete([user("z")], session_id=session.session_id)
    assert (other.session_id, other.turn, other.num_tokens) == (session.session_id, 1, other.tokens_committed)
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    running = asyncio.ensure_future(bench.say(session.session_id, "x"))
    while not bench.manager.running.is_busy(session.session_id):
        await asyncio.sleep(0)
    with pytest.raises(SessionBusy):
        await bench.complete([user("z")], session_id=session.session_id)
    gate.set()
    await running


async def test_what_is_not_to_be_kept_is_not(bench: Bench) -> None:
    said, one = await bench.complete([user("a")], keep=False)
    assert (one.session_id, one.conversation) == ("", None)
    _, two = await bench.complete([user("a"), assistant(said), user("b")], keep=False)
    assert two.usage.tokens_by_source.cached >= one.num_tokens
    _, text = await collected(bench.manager.complete(CompletionRequest(prompt=TextInput("x"), sampling=GREEDY)))
    assert text.session_id == ""
    assert await bench.store.sessions("", limit=10) == []


async def test_a_server_that_keeps_no_conversations(bench: Bench) -> None:
    bench.manager.shutdown()
    bench.manager = SessionManager(
        bench.store,
        bench.engine,
        bench.tokenizer,
        bench.template,
        clock=bench.clock,
        steady=bench.clock,
        keep_conversations=False,
    )
    said, one = await bench.complete([user("a")])
    _, two = await bench.complete([user("a"), assistant(said), user("b")])
    assert two.usage.tokens_by_source.cached >= one.num_tokens
    assert await bench.store.sessions("", limit=10) == []


async def test_equal_conversations_are_told_apart_by_their_ends(bench: Bench) -> None:
    """Two answers of the same text and other tokens: each is continued by its own tokens."""
    bench.tokenizer = byte_tokenizer("<|mind|>")
    bench.engine = ScriptedEngine(vocab_size=259)
    bench.restart()
    ends = []
    for tokens in ([64, 257], [258, 64, 257]):
        bench.engine.will_say(tokens)
        ends.append(await bench.complete([user("a")]))
    assert ends[0][0] == ends[1][0] == "a"
    for said, end in ends:
        await bench.complete([user("a"), assistant(said), user("b")], after=end.conversation)
        session = await bench.store.session(end.session_id)
        assert session is not None
        assert (await submitted(bench))[: end.num_tokens] == (await bench.store.log(session.place)).token_ids()[
            : end.num_tokens
        ]


async def test_retention_of_a_conversation(bench: Bench) -> None:
    _, one = await bench.complete([user("a")], retain=Retain(ttl_s=300.0))
    session = await bench.store.session(one.session_id)
    assert session is not None
    assert session.keeping.retained is not None
    assert session.keeping.retained.until is not None


async def test_unused_conversations_are_forgotten(bench: Bench) -> None:
    _, one = await bench.complete([user("a")], client=Client(name="one"))
    assert await bench.store.latest_of_client("", "one") is not None
    _, closed = await bench.complete([user("z")], client=Client(name="two"))
    await bench.manager.close(CloseRequest(session_id=closed.session_id))
    opened = await bench.open()
    await bench.store.prune(bench.clock.now + 1)
    assert await bench.store.latest_of_client("", "one") is None
    assert [await bench.store.client_of(end.session_id) for end in (one, closed)] == ["", ""]
    assert [session.session_id for session in await bench.store.sessions("", limit=10)] == [opened.session_id]
    assert await bench.store.prune(0) == 0
    said, _ = await bench.complete([user("a")])
    assert said


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 3000), st.data())
def test_the_longest_beginning_is_found_among_many(tmp_path_factory, length: int, data: st.DataObject) -> None:
    store = SessionStore(tmp_path_factory.mktemp("conversations"))
    try:
        keys = [hashlib.blake2b(b"%d" % index, digest_size=16).digest() for index in range(length)]
        kept = data.draw(st.sets(st.integers(0, max(length - 1, 0)), max_size=3)) if length else set()

        def write(database) -> None:
            for index in kept:
                place = Place(Head(1, 1), index + 1, 1)
                row = StoredConversation(tenant="t", key=keys[index], session_id="s", place=place, used_at=0.0)
                write_conversation(database._database, row)

        store._writer.submit(write).result()
        found = store._writer.submit(lambda database: find_conversation(database._database, "t", keys)).result()
        assert (found and found[0]) == (max(kept) if kept else None)
        assert store._writer.submit(lambda database: find_conversation(database._database, "u", keys)).result() is None
    finally:
        store.close()


async def test_the_turn_of_a_kept_conversation_can_be_generated_on(bench: Bench) -> None:
    """The session of a stateless client takes appends, forks and turns like any other."""
    _, one = await bench.complete([user("a")])
    request = GenerateRequest(
        session_id=one.session_id, expected_version=one.version, input=MessagesInput((user("b"),)), sampling=GREEDY
    )
    _, two = await collected(bench.manager.generate(request))
    assert isinstance(two, TurnFinished)
    assert two.version == one.version + 1
