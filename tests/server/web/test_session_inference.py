"""Clients that know no session: whose a conversation is, its branches, what is replayed, and what is told of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from manager_bench import GREEDY, collected, user
from web_bench import WebBench

from sessile.server.text.answer_format import ReasoningFormat, TextConfig, ToolFormat
from sessile.server.web.identity import SESSION_HEADERS
from sessile.sessions.manager import GenerateRequest, MessagesInput, OpenSession, ToolResultInput

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
RULES = "Follow every rule of the handbook. " * 8
READ = {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
TOOL = {"type": "function", "function": READ}
CALL = '<tool_call>\n{"name": "read", "arguments": {"path":  "a.py", "lines": 10.0}}\n</tool_call>'


class Talk:
    """A client of chat completions that keeps its own history, as they all do."""

    def __init__(self, http: httpx.AsyncClient, *, system: str = RULES, headers: Any = None, **fields: Any) -> None:
        self.http, self.headers, self.fields = http, headers or {}, fields
        self.history: list[Any] = [{"role": "system", "content": system}]
        self.sessions: list[str] = []
        self.usage: dict[str, Any] = {}

    async def ask(self, text: str, *, keep: bool = True) -> str:
        sent = [*self.history, {"role": "user", "content": text}]
        answer = await self.http.post(CHAT, json={"messages": sent, **self.fields}, headers=self.headers)
        assert answer.status_code == 200, answer.text
        self.usage = answer.json()["usage"]
        self.sessions.append(answer.headers["x-sessile-session"])
        message = answer.json()["choices"][0]["message"]
        if keep:
            self.history = [*sent, message]
        return self.sessions[-1]

    @property
    def hit(self) -> float:
        """Of what this conversation had computed or sampled before, the share that was not computed again."""
        known = self.usage["replay"]["replayed_tokens"]
        return float(self.usage["prompt_tokens_details"]["cached_tokens"] / known)


# -- whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", SESSION_HEADERS)
async def test_sglang_34513_headers_that_agents_send_are_read(http: httpx.AsyncClient, header: str) -> None:
    """Two clients say the same: each goes on in the session that was made for it."""
    one, two = (Talk(http, headers={header: name}, temperature=0) for name in ("one", "two"))
    await one.ask("hi")
    await two.ask("hi")
    assert one.history == two.history
    for talk in (one, two):
        assert await talk.ask("more") == talk.sessions[0]
        assert talk.hit >= 0.95
    assert one.sessions[0] != two.sessions[0]


@pytest.mark.parametrize("field", ["prompt_cache_key", "user", "safety_identifier", "metadata"])
async def test_fields_of_a_body_name_a_client(http: httpx.AsyncClient, field: str) -> None:
    values = [{"user_id": name} if field == "metadata" else name for name in ("one", "two")]
    one, two = (Talk(http, temperature=0, **{field: value}) for value in values)
    for _ in range(2):
        await one.ask("hi")
        await two.ask("hi")
    assert len({*one.sessions}) == len({*two.sessions}) == 1
    assert one.sessions[0] != two.sessions[0]


async def test_anthropics_metadata_names_a_client(http: httpx.AsyncClient) -> None:
    first, sessions = {"role": "user", "content": "hi"}, []
    sent: list[Any] = [first]
    for name in ("one", "two", "one", "two"):
        body = {"max_tokens": 50, "messages": sent, "metadata": {"user_id": name}}
        answer = await http.post(MESSAGES, json=body)
        assert "x-sessile-ignored" not in answer.headers
        sessions.append(answer.headers["x-sessile-session"])
        if len(sessions) == 2:
            sent = [first, {"role": "assistant", "content": answer.json()["content"]}, first]
    assert sessions[:2] == sessions[2:]
    assert sessions[0] != sessions[1]


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "one"}])
async def test_two_conversations_interleaved_on_one_key(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    left, right = (Talk(http, headers=headers, prompt_cache_key="one") for _ in range(2))
    for number in range(4):
        for talk, text in ((left, "of ships"), (right, "of bees")):
            await talk.ask(f"{text} {number}")
            assert not number or talk.hit >= 0.95
    assert [len({*talk.sessions}) for talk in (left, right)] == [1, 1]
    assert left.sessions[0] != right.sessions[0]


async def test_a_side_request_is_a_branch_and_the_conversation_goes_on(web: WebBench, http: httpx.AsyncClient) -> None:
    """A title with a prompt of its own, and a summary of all that was said, between two turns of one agent."""
    headers = {"x-claude-code-session-id": "s"}
    talk, title = Talk(http, headers=headers), Talk(http, system="Give a title.", headers=headers)
    await talk.ask("build it")
    await title.ask("build it")
    assert (await web.bench.manager.get(title.sessions[0])).parent_session_id == talk.sessions[0]
    assert await talk.ask("go on") == talk.sessions[0]
    await talk.ask("summarise", keep=False)
    after = await talk.ask("and now the tests")
    assert talk.hit >= 0.95
    assert (await web.bench.manager.get(after)).parent_session_id == talk.sessions[0]
    assert await talk.ask("done?") == after


async def test_a_sub_agent_branches_off_its_parent(web: WebBench, http: httpx.AsyncClient) -> None:
    headers = {"x-claude-code-session-id": "s"}
    main, sub = Talk(http, headers=headers), Talk(http, headers={**headers, "x-claude-code-agent-id": "a"})
    await main.ask("build it")
    sub.history = main.history
    await sub.ask("look for bugs")
    assert sub.hit >= 0.95
    assert sub.sessions[0] != main.sessions[0]
    assert (await web.bench.manager.get(sub.sessions[0])).parent_session_id == main.sessions[0]
    assert await main.ask("go on") == main.sessions[0], "what its child did is not its own"
    deeper = Talk(http, system="Other.", headers={**sub.headers, "x-claude-code-agent-id": "b"})
    deeper.headers["x-claude-code-parent-agent-id"] = "a"
    await deeper.ask("hi")
    assert (await web.bench.manager.get(deeper.sessions[0])).parent_session_id == sub.sessions[0]


@pytest.mark.parametrize("header", ["x-codex-parent-thread-id", "x-parent-session-id", "x-dynamo-parent-session-id"])
async def test_headers_that_name_a_parent(web: WebBench, http: httpx.AsyncClient, header: str) -> None:
    main = Talk(http, headers={"session_id": "m"})
    sub = Talk(http, system="Other.", headers={"session_id": "c", header: "m"})
    await main.ask("hi")
    await sub.ask("hi")
    assert (await web.bench.manager.get(sub.sessions[0])).parent_session_id == main.sessions[0]


async def test_a_name_that_is_none_is_no_error(http: httpx.AsyncClient) -> None:
    for headers in ({"x-session-id": "x" * 3000}, {"x-session-id": "a\tb"}, {"x-session-id": ""}):
        talk = Talk(http, headers=headers)
        await talk.ask("hi")
        assert await talk.ask("more") == talk.sessions[0]


async def test_what_a_client_is_called_outlives_a_restart(web: WebBench) -> None:
    async with web.client() as http:
        talks = [Talk(http, headers={"x-session-id": name}, temperature=0) for name in ("one", "two")]
        for talk in talks:
            await talk.ask("hi")
    web.restart()
    async with web.client() as http:
        for talk in talks:
            talk.http = http
            assert await talk.ask("more") == talk.sessions[0]


# -- transport lines --------------------------------------------------------------------------------------------------


def _billed(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.{number}.0d9; cc_entrypoint=cli; cch={number:05x};"


def _chat(number: int, said: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    system = {"role": "system", "content": f"{_billed(number)}\n{RULES}"}
    return CHAT, {"messages": [system, *({"role": role, "content": text} for role, text in said)]}


def _messages(number: int, said: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    blocks = [{"type": "text", "text": _billed(number)}, {"type": "text", "text": RULES}]
    return MESSAGES, {
        "max_tokens": 50,
        "system": blocks,
        "messages": [{"role": role, "content": text} for role, text in said],
    }


def _responses(number: int, said: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    items = [{"role": role, "content": text} for role, text in said]
    return RESPONSES, {"instructions": f"{_billed(number)}\n{RULES}", "input": items}


@pytest.mark.parametrize("api", [_chat, _messages, _responses])
async def test_claude_code_68900_vllm_36829_sglang_21064_a_nonce_costs_nothing(
    web: WebBench, http: httpx.AsyncClient, api: Any
) -> None:
    said = web.says("Hello.")
    path, body = api(1, [("user", "hi")])
    one = await http.post(path, json=body)
    before = [*web.prompt, *said]
    path, body = api(2, [("user", "hi"), ("assistant", "Hello."), ("user", "more")])
    two = await http.post(path, json=body)
    assert two.headers["x-sessile-session"] == one.headers["x-sessile-session"]
    assert web.prompt[: len(before)] == before
    assert "billing" not in web.shown
    assert two.headers["x-sessile-neutralised"] == "x-anthropic-billing-header"
    assert two.json()["usage"]["replay"]["neutralised"] == ["x-anthropic-billing-header"]
    assert two.json()["usage"]["prompt_tokens_by_source"]["device"] >= 0.95 * len(before)


# -- what is replayed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
async def test_mtplx_121_colibri_1576_a_call_that_its_client_rewrote_is_replayed(web: WebBench, restarts: bool) -> None:
    """Key order, white space and 10.0 for 10 changed on the way through the client, as JavaScript writes it back."""
    said = web.says("Let me look.\n" + CALL)
    sent: list[Any] = [{"role": "user", "content": "look"}]
    async with web.client() as http:
        message = (await http.post(CHAT, json={"messages": sent, "tools": [TOOL]})).json()["choices"][0]["message"]
    before = [*web.prompt, *said]
    call = message["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"path": "a.py", "lines": 10}
    call["function"]["arguments"] = '{"lines":10,"path":"a.py"}'
    sent += [message, {"role": "tool", "tool_call_id": call["id"], "content": "def f(): ..."}]
    if restarts:
        web.restart()
    async with web.client() as http:
        answer = await http.post(CHAT, json={"messages": sent, "tools": [TOOL]})
    assert web.prompt[: len(before)] == before
    replay = answer.json()["usage"]["replay"]
    assert replay == {"replayed_tokens": len(before), "rewritten_answers": 1, "neutralised": []}


@pytest.mark.parametrize("sent_back", [True, False])
async def test_qwen_131_crow_60_reasoning_that_a_template_drops_stays(web: WebBench, sent_back: bool) -> None:
    web.text = TextConfig(tool_parser=ToolFormat.HERMES, reasoning_parser=ReasoningFormat.THINK)
    web.restart()
    async with web.client() as http:
        said = web.says("<think>2 and 2</think>4")
        sent: list[Any] = [{"role": "user", "content": "2+2?"}]
        first = (await http.post(CHAT, json={"messages": sent})).json()
        message, before = first["choices"][0]["message"], [*web.prompt, *said]
        assert first["usage"]["replay"] == {"replayed_tokens": 0, "rewritten_answers": 0, "neutralised": []}
        if not sent_back:
            del message["reasoning_content"]
        second = (await http.post(CHAT, json={"messages": [*sent, message, sent[0]]})).json()
    assert web.prompt[: len(before)] == before
    replay = second["usage"]["replay"]
    assert replay == {"replayed_tokens": len(before), "rewritten_answers": 1, "neutralised": []}
    assert second["usage"]["prompt_tokens_by_source"]["device"] >= len(before) - 1


async def test_a_template_that_writes_history_as_it_was_rewrites_nothing(http: httpx.AsyncClient) -> None:
    talk = Talk(http)
    for text in ("a", "b", "c"):
        await talk.ask(text)
    assert talk.usage["replay"]["rewritten_answers"] == 0
    assert talk.usage["replay"]["replayed_tokens"] > 0


# -- gRPC and HTTP are one --------------------------------------------------------------------------------------------


async def test_turns_over_grpc_are_continued_over_http(web: WebBench, http: httpx.AsyncClient) -> None:
    """Opened, asked and given a tool's result over gRPC; gone on with by clients that send all of it."""
    manager = web.bench.manager
    session = await manager.open(OpenSession(system=RULES, tools=(TOOL,)))
    web.says("Let me look.\n" + CALL)
    ask = GenerateRequest(session_id=session.session_id, input=MessagesInput((user("look"),)), sampling=GREEDY)
    _, one = await collected(manager.generate(ask))
    said = web.says("It is f.")
    result = ToolResultInput(tool_call_id=one.tool_calls[0].id, content="def f(): ...")
    await collected(manager.generate(GenerateRequest(session_id=session.session_id, input=result, sampling=GREEDY)))
    before = [*web.prompt, *said]
    function = {"name": "read", "arguments": '{"lines":10,"path":"a.py"}'}
    call = {"id": one.tool_calls[0].id, "type": "function", "function": function}
    history: list[Any] = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "Let me look.\n", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "def f(): ..."},
        {"role": "assistant", "content": "It is f."},
        {"role": "user", "content": "thanks"},
    ]
    kwargs = {"enable_thinking": False}
    answer = await http.post(CHAT, json={"messages": history, "tools": [TOOL], "chat_template_kwargs": kwargs})
    assert answer.headers["x-sessile-session"] == session.session_id
    assert web.prompt[: len(before)] == before
    assert (await manager.get(session.session_id)).num_turns == 3
    # and gRPC goes on where HTTP ended, and HTTP after that
    said = web.says("Bye.")
    bye = GenerateRequest(session_id=session.session_id, input=MessagesInput((user("bye"),)), sampling=GREEDY)
    _, four = await collected(manager.generate(bye))
    before = [*web.prompt, *said]
    history += [answer.json()["choices"][0]["message"]]
    history += [{"role": "user", "content": "bye"}, {"role": "assistant", "content": "Bye."}]
    last = {"messages": [*history, {"role": "user", "content": "?"}], "tools": [TOOL]}
    answer = await http.post(CHAT, json=last)
    assert (four.turn, answer.headers["x-sessile-session"]) == (4, session.session_id)
    assert web.prompt[: len(before)] == before


async def test_a_conversation_by_messages_goes_on_by_grpc_and_by_messages_again(
    web: WebBench, http: httpx.AsyncClient
) -> None:
    sent: list[Any] = [{"role": "user", "content": "hi"}]
    web.says("Hello.")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"max_tokens": 50, "system": RULES, "thinking": thinking}
    one = await http.post(MESSAGES, json={**body, "messages": sent})
    session_id = one.headers["x-sessile-session"]
    said = web.says("Yes.")
    ask = GenerateRequest(session_id=session_id, input=MessagesInput((user("more"),)), sampling=GREEDY)
    await collected(web.bench.manager.generate(ask))
    before = [*web.prompt, *said]
    sent += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "more"}]
    sent += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "and?"}]
    three = await http.post(MESSAGES, json={**body, "messages": sent})
    assert three.headers["x-sessile-session"] == session_id
    assert web.prompt[: len(before)] == before
    assert three.json()["usage"]["cache_read_input_tokens"] >= 0.95 * len(before)
