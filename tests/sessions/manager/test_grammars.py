"""Grammars on their way through the manager: checked before a turn begins, and behind reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from manager_bench import GREEDY, Bench

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import FinishReason, TokensBySource, TurnOutput, TurnUsage
from sessile.server.text.answer_format import ReasoningFormat, TextConfig
from sessile.sessions.errors import RequestError
from sessile.sessions.manager import CompletionRequest, MessagesInput, SessionManager, TextInput
from sessile.sessions.messages import Message, Role

SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
UNSUPPORTED = Grammar(GrammarKind.JSON_SCHEMA, '{"properties": {"a": {"not": {}}}}')


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.start()
    yield made
    made.stop()


def bound(grammar: Grammar):
    return msgspec.structs.replace(GREEDY, grammar=grammar)


async def complete(bench: Bench, prompt: MessagesInput | TextInput, grammar: Grammar) -> None:
    async for _ in bench.manager.complete(CompletionRequest(prompt=prompt, sampling=bound(grammar))):
        pass


USER = MessagesInput((Message(role=Role.USER, content="x"),))


async def test_a_grammar_reaches_the_engine_as_it_is(bench: Bench) -> None:
    await complete(bench, USER, SCHEMA)
    await complete(bench, TextInput("x"), SCHEMA)
    session = await bench.open()
    await bench.say(session.session_id, "x", sampling=bound(SCHEMA))
    assert [turn.sampling.grammar for turn in bench.engine.submitted] == [SCHEMA] * 3


async def test_one_that_cannot_be_used_starts_nothing(bench: Bench) -> None:
    with pytest.raises(RequestError, match="'not' at #/properties/a/not") as caught:
        await complete(bench, USER, UNSUPPORTED)
    assert caught.value.field == "grammar"
    session = await bench.open()
    with pytest.raises(RequestError) as caught:
        await bench.say(session.session_id, "x", sampling=bound(UNSUPPORTED))
    assert caught.value.field == "sampling.grammar"
    with pytest.raises(RequestError) as caught:
        await bench.manager.check_grammar(UNSUPPORTED, "guided_json")
    assert caught.value.field == "guided_json"
    assert bench.engine.submitted == []
    assert (await bench.manager.get(session.session_id)).version == session.version


async def test_a_model_that_reasons_does_so_before(bench: Bench) -> None:
    bench.manager.shutdown()
    config = TextConfig(reasoning_parser=ReasoningFormat.THINK)
    bench.manager = SessionManager(bench.store, bench.engine, bench.tokenizer, bench.template, text_config=config)
    await complete(bench, USER, SCHEMA)
    await complete(bench, TextInput("x"), SCHEMA)
    session = await bench.open()
    await bench.say(session.session_id, "x", sampling=bound(SCHEMA))
    chat, text, turn = (turn.sampling.grammar for turn in bench.engine.submitted)
    assert chat == turn != SCHEMA == text
    assert chat is not None and chat.kind is GrammarKind.LARK and "</think>" in chat.text


async def test_a_grammar_that_fails_in_the_engine_is_a_bad_request(bench: Bench) -> None:
    async def generate(turn):
        usage = TurnUsage(prompt_tokens=1, completion_tokens=0, tokens_by_source=TokensBySource(computed=1))
        yield TurnOutput(
            turn_id=turn.turn_id, token_ids=[], finish_reason=FinishReason.FAILED, usage=usage, error="too complex"
        )

    bench.engine.generate = generate
    with pytest.raises(RequestError, match="too complex"):
        await complete(bench, USER, SCHEMA)
