"""Turns without a session, and the memory that replays their exact tokens."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from functools import partial

import msgspec
import pytest
from byte_text import byte_tokenizer, chatml_template
from hypothesis import given
from hypothesis import strategies as st
from manager_bench import GREEDY, Bench, collected, user
from scripted_engine import ScriptedEngine

from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.errors import ContextOverflow, EngineError, RequestError
from sessile.sessions.manager import CompletionRequest, MessagesInput, ReplayMemory, TextInput, TokenIdsInput
from sessile.sessions.manager.replay import ConversationKeys
from sessile.sessions.messages import Message, Role, ToolCall

SYSTEM = Message(role=Role.SYSTEM, content="s")

FORGETFUL = (  # shows an answer's reasoning only while it is the last message, as reasoning models' templates do
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' -}}"
    "{%- if m.role == 'assistant' and not loop.last -%}{{- m.content.split('|')[-1] -}}"
    "{%- else -%}{{- m.content -}}{%- endif -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


async def test_a_conversation_grows_by_its_new_messages(bench: Bench) -> None:
    first, one = await bench.complete([SYSTEM, user("a")])
    second, two = await bench.complete([SYSTEM, user("a"), assistant(first), user("b")])
    _, three = await bench.complete([SYSTEM, user("a"), assistant(first), user("b"), assistant(second), user("c")])
    assert two.usage.tokens_by_source.cached == one.num_tokens
    assert three.usage.tokens_by_source.cached == two.num_tokens
    assert one.session_id == two.session_id == three.session_id
    assert [(end.version, end.turn) for end in (one, two, three)] == [(1, 1), (2, 2), (3, 3)]
    assert one.tokens_committed + two.tokens_committed + three.tokens_committed == three.num_tokens


async def test_sampled_tokens_are_replayed(bench: Bench) -> None:
    """Qwen3.8 #131, MTPLX #121: no template and no tokenizer touches an answer again."""
    bench.tokenizer = byte_tokenizer("<|mind|>")
    bench.engine = ScriptedEngine(vocab_size=259)
    bench.template = chatml_template(FORGETFUL)
    bench.restart()
    said = [258, *bench.tokens("why|because"), 257]
    bench.engine.will_say(said)
    text, one = await bench.complete([user("a")])
    assert text == "why|because"
    _, two = await bench.complete([user("a"), assistant(text), user("b")])
    assert bench.engine.submitted[1].token_ids[: one.num_tokens] == [*bench.engine.submitted[0].token_ids, *said]
    assert two.usage.tokens_by_source.cached == one.num_tokens
    assert bench.shown(bench.engine.submitted[1].token_ids[one.num_tokens :]) == (
        "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_branches_of_one_conversation(bench: Bench) -> None:
    text, one = await bench.complete([user("a")])
    history = [user("a"), assistant(text)]
    for question in ("b", "c", "d"):
        _, two = await bench.complete([*history, user(question)])
        assert two.usage.tokens_by_source.cached >= one.num_tokens


async def test_an_unknown_past_is_rendered_whole(bench: Bench) -> None:
    await bench.complete([user("a"), assistant("never said"), user("b")])
    assert bench.shown(bench.engine.submitted[0].token_ids) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nnever said<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_tenants_tools_and_arguments_part_conversations(bench: Bench) -> None:
    bench.engine.will_say([64, 257])
    await bench.complete([user("a")], tenant="t")
    again = [user("a"), assistant("a"), user("b")]
    tool = {"type": "function", "function": {"name": "f"}}
    for fields in ({"tenant": "u"}, {"tenant": "t", "tools": (tool,)}, {"tenant": "t", "template_arguments": {"x": 1}}):
        before = len(bench.engine.submitted)
        await bench.complete(again, **fields)
        anew = bench.shown(bench.engine.submitted[before].token_ids)  # tools stand before it
        assert anew.endswith(bench.shown(bench.engine.submitted[1].token_ids))
    assert {turn.cache_salt for turn in bench.engine.submitted} == {"t", "u"}


async def test_tool_calls_are_compared_by_their_values(bench: Bench) -> None:
    keys = ConversationKeys("", (), {})
    spaced = ToolCall(id="1", name="f", arguments='{"a": 1, "b": [2]}')
    tight = ToolCall(id="other", name="f", arguments='{"b":[2],"a":1}')
    different = ToolCall(id="1", name="f", arguments='{"a": 2}')

    def key(call: ToolCall) -> bytes:
        return keys.of([Message(role=Role.ASSISTANT, tool_calls=(call,))])[0]

    assert key(spaced) == key(tight) != key(different)


async def test_a_template_that_cannot_continue_renders_from_the_start(bench: Bench) -> None:
    bench.template = chatml_template(
        "{%- if messages[0].content != 'a' -%}{{ raise_exception('must begin with a') }}{%- endif -%}"
        "{%- for m in messages -%}{{ m.content }}|{%- endfor -%}"
    )
    bench.restart()
    text, _ = await bench.complete([user("a")])
    await bench.complete([user("a"), assistant(text), user("b")])
    assert bench.shown(bench.engine.submitted[1].token_ids) == f"a|{text}|b|"


async def test_text_and_tokens(bench: Bench) -> None:
    for prompt in (TextInput("<|im_start|>x"), TokenIdsInput((256, 87))):
        request = CompletionRequest(prompt=prompt, sampling=GREEDY)
        _, finished = await collected(bench.manager.complete(request))
        assert finished.num_tokens == 2 + finished.usage.completion_tokens
    assert bench.engine.submitted[0].token_ids == bench.engine.submitted[1].token_ids == [256, 87]


async def test_bad_input(bench: Bench) -> None:
    with pytest.raises(RequestError) as bad:
        await bench.complete([])
    assert bad.value.field == "messages"
    with pytest.raises(RequestError) as bad:
        await bench.complete([user("a"), user("\ud800")])
    assert bad.value.field == "messages[1].content"
    with pytest.raises(RequestError) as bad:
        await bench.complete([user("a")], model="gpt")
    assert bad.value.field == "model"
    for prompt in (TextInput(""), TokenIdsInput(()), TokenIdsInput((500,))):
        with pytest.raises(RequestError) as bad:
            await collected(bench.manager.complete(CompletionRequest(prompt=prompt)))
        assert (bad.value.field or "").startswith("prompt")
    for arguments, field in (
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"x": "\ud800"}, "chat_template_kwargs"),
        ({"x": json.loads("[" * 500 + "]" * 500)}, "chat_template_kwargs"),
    ):
        with pytest.raises(RequestError) as bad:
            await bench.complete([user("a")], template_arguments=arguments)
        assert bad.value.field == field
    for length in (5000, 10_000_000):
        with pytest.raises(ContextOverflow) as overflow:
            await bench.complete([user("x" * length)])
        assert overflow.value.field == "messages"


async def test_a_turn_closed_early_is_not_remembered(bench: Bench) -> None:
    request = CompletionRequest(prompt=TextInput("x"), sampling=GREEDY)
    running = bench.manager.complete(request)
    await anext(running)
    await anext(running)
    await running.aclose()
    assert len(bench.engine.aborted) == 1
    assert bench.manager.running.in_hand == 0


# -- what the template would have written otherwise ------------------------------------------------------------------


async def test_what_is_only_counted_is_not_compared_with_the_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = await bench.complete([user("a")])
    read: list[object] = []
    monkeypatch.setattr(bench.store, "last_parts", lambda *asked: read.append(asked))
    again = CompletionRequest(prompt=MessagesInput((user("a"), assistant(said), user("b"))), sampling=GREEDY)
    assert await bench.manager.count_tokens(again) == len(await bench.manager.prompt_tokens(again))
    too_long = msgspec.structs.replace(again, sampling=SamplingParams(temperature=0.0, max_tokens=5000))
    with pytest.raises(RequestError):
        await collected(bench.manager.complete(too_long))
    assert read == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("keep", [True, False])
async def test_a_turn_that_fails_leaves_no_comparison_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """Neither one that runs, nor one whose failure nobody hears of."""
    said, _ = await bench.complete([user("a")])
    held = threading.Event()
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))

    def fails() -> int:
        raise AssertionError("a template of its own mind")

    for comparison in (partial(held.wait, 30.0), fails):
        monkeypatch.setattr(bench.manager._turns.prompts, "rewritten_answers", lambda *_, do=comparison: do())
        bench.engine.will_say([64, 65, 257], fail_after=1)
        with pytest.raises(EngineError):
            await bench.complete([user("a"), assistant(said), user("b")], keep=keep)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        held.set()
    gc.collect()
    assert unheard == []


async def test_what_is_not_kept_replays_what_a_session_recorded(bench: Bench) -> None:
    said, one = await bench.complete([user("a")])
    _, aside = await bench.complete([user("a"), assistant(said), user("b")], keep=False)
    assert (aside.session_id, aside.replay.replayed_tokens) == ("", one.num_tokens)


# -- the memory -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 6)), max_size=60),
    st.integers(1, 8),
    st.integers(1, 40),
)
def test_the_memory_never_lies_and_stays_bounded(
    steps: list[tuple[int, int, int]], max_conversations: int, max_tokens: int
) -> None:
    """What it recalls is what was remembered last under that key, or nothing."""
    memory = ReplayMemory(max_conversations=max_conversations, max_tokens=max_tokens, max_tenants=1)
    truth: dict[bytes, list[int]] = {}
    for name, parent, length in steps:
        key, before = b"k%d" % name, b"k%d" % parent
        if key in truth:
            count, token_ids = memory.tokens_after("t", [key])
            assert token_ids in ([], truth[key])
            assert count == bool(token_ids)
            continue
        start = truth.get(before, [])
        truth[key] = [*start, *range(name, name + length)]
        memory.remember("t", key, before if start else None, truth[key])
        assert memory.num_tokens <= max_tokens


def test_the_least_used_is_forgotten_and_the_longest_found() -> None:
    memory = ReplayMemory(max_conversations=3)
    memory.remember("t", b"a", None, [1])
    memory.remember("t", b"b", b"a", [1, 2])
    memory.remember("t", b"c", None, [3])
    assert memory.tokens_after("t", [b"a", b"b", b"x"]) == (2, [1, 2])
    memory.remember("t", b"d", None, [4])
    assert memory.tokens_after("t", [b"c"]) == (0, [])
    assert memory.tokens_after("t", [b"b"]) == (1, [1, 2])


def test_what_grew_out_of_a_forgotten_one_is_remembered_whole() -> None:
    memory = ReplayMemory(max_conversations=2)
    memory.remember("t", b"new", b"forgotten", [1, 2, 3])
    assert memory.tokens_after("t", [b"new"]) == (1, [1, 2, 3])
    memory.remember("t", b"odd", b"new", [1, 9, 9, 9])  # says it grew out of new, and did not
    assert memory.tokens_after("t", [b"odd"]) == (1, [1, 9, 9, 9])


def test_the_least_used_tenant_is_forgotten() -> None:
    memory = ReplayMemory(max_tenants=2)
    for tenant in "abc":
        memory.remember(tenant, b"k", None, [1])
    assert memory.tokens_after("a", [b"k"]) == (0, [])
    assert memory.tokens_after("c", [b"k"]) == (1, [1])


def test_all_tenants_together_are_bounded() -> None:
    memory = ReplayMemory(max_tokens_in_all=5)
    for tenant in "abc":
        memory.remember(tenant, b"k", None, [1, 2])
    assert memory.num_tokens == 4
    assert [memory.tokens_after(tenant, [b"k"])[0] for tenant in "abc"] == [0, 1, 1]
