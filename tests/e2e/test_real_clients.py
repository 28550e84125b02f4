"""Clients as their packages are, against a running server on the embedded model: conversations with tools of several
turns, of which every later one finds what is reusable, by what usage says. docs/agents.md shows the examples."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import grpc
import openai
import pytest
from client_environment import client_python
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
RULES = "You are brief. You read files before you answer. " * 6
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a.txt", "b.txt"]}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": SCHEMA}}
SHORT: Any = {"model": "default", "temperature": 0, "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ("--kv-memory-bytes", "256MiB")
    with ServerProcess(tmp_path_factory.mktemp("data") / "server", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def frameworks() -> Path:
    return client_python()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def require_hit(cached: int, reusable: int) -> None:
    """Of what could be reused, nearly all was."""
    assert reusable > 50
    assert cached >= 0.95 * reusable, (cached, reusable)


class Chat:
    """A conversation of OpenAI's client, with calls; streamed or whole."""

    def __init__(self, client: openai.OpenAI, about: str, **fields: Any) -> None:
        self.client, self.fields = client, fields
        self.messages: list[Any] = [{"role": "system", "content": RULES + about}]
        self.reuse: list[tuple[int, int, int]] = []  # cached, reusable, replayed

    def call(self, text: str) -> None:
        """A question that is answered by a call, and the call's result."""
        self.messages.append({"role": "user", "content": text})
        with self.client.chat.completions.stream(
            messages=self.messages,
            tools=[TOOL],
            tool_choice="required",
            max_tokens=40,
            stream_options={"include_usage": True},
            **SHORT,
            **self.fields,
        ) as stream:
            answer = stream.get_final_completion()
        self._take(answer)
        call = answer.choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments)["name"] in ("a.txt", "b.txt")
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": "It says: 7."})

    def answer(self) -> None:
        """What the model says to the result, in words."""
        answer = self.client.chat.completions.create(
            messages=self.messages, tools=[TOOL], tool_choice="none", max_tokens=12, **SHORT, **self.fields
        )
        self._take(answer)

    def _take(self, answer: Any) -> None:
        usage = answer.usage
        extra = usage.model_extra
        assert sum(extra["prompt_tokens_by_source"].values()) == usage.prompt_tokens
        cached = usage.prompt_tokens_details.cached_tokens
        self.reuse.append((cached, extra["reusable_tokens"], extra["replay"]["replayed_tokens"]))
        self.messages.append(answer.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}))

    def check(self) -> None:
        for cached, reusable, replayed in self.reuse[1:]:
            require_hit(cached, reusable)
            assert cached >= 0.95 * replayed  # the last tokens of a call that a grammar forced are not computed yet


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "one"}], ids=["unnamed", "named"])
def test_openai_chat_two_conversations_interleaved_on_one_key(client: openai.OpenAI, headers: dict[str, str]) -> None:
    fields = {"extra_headers": headers, "prompt_cache_key": "one"} if headers else {}
    talks = [Chat(client, about, **fields) for about in ("Ships.", "Bees.")]
    for talk in talks:
        talk.call("Read a file.")
    for talk in talks:
        talk.answer()
    talks[0].call("Read another.")
    for talk in talks:
        talk.check()


def test_openai_responses_with_calls_streamed(client: openai.OpenAI) -> None:
    """vLLM #43244: the chain keeps its calls."""
    tool: Any = {"type": "function", "name": "read_file", "parameters": SCHEMA, "strict": True}
    kept: Any = {"instructions": RULES, "tools": [tool], **SHORT}
    with client.responses.stream(input="Read a file.", tool_choice="required", max_output_tokens=40, **kept) as stream:
        kinds = {event.type for event in stream}
        one = stream.get_final_response()
    assert {"response.created", "response.function_call_arguments.delta", "response.completed"} <= kinds
    (call,) = [item for item in one.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "It says: 7."}]
    two = client.responses.create(
        input=result, previous_response_id=one.id, tool_choice="none", max_output_tokens=12, **kept
    )
    three = client.responses.create(
        input="Another?", previous_response_id=two.id, tool_choice="required", max_output_tokens=40, **kept
    )
    for answer in (two, three):
        require_hit(answer.usage.input_tokens_details.cached_tokens, answer.usage.model_extra["reusable_tokens"])


@pytest.mark.parametrize("headers", [{}, {"x-claude-code-session-id": "two"}], ids=["unnamed", "named"])
def test_anthropic_streamed_with_tools_and_cache_control(server: ServerProcess, headers: dict[str, str]) -> None:
    """claude-code #68900: the first block is a billing line that is another one in each request."""
    tool: Any = {"name": "read_file", "input_schema": SCHEMA}
    messages: list[Any] = [{"role": "user", "content": f"Read a file. {sorted(headers)}"}]
    kept = {"type": "ephemeral", "ttl": "1h"}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for number, choice in enumerate(("any", "none", "any")):
            billing = f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"
            system: Any = [{"type": "text", "text": billing}, {"type": "text", "text": RULES, "cache_control": kept}]
            chosen: Any = {"type": choice} | ({"disable_parallel_tool_use": True} if choice == "any" else {})
            with client.messages.stream(
                model="default",
                max_tokens=40,
                system=system,
                tools=[tool],
                tool_choice=chosen,
                messages=messages,
                extra_headers=headers,
                extra_body={"temperature": 0},
            ) as stream:
                extra = [event.usage.model_extra for event in stream if event.type == "message_delta"][-1] or {}
                answer = stream.get_final_message()
            usage = answer.usage
            read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
            assert usage.input_tokens + read + created == sum(extra["prompt_tokens_by_source"].values())
            assert extra["replay"]["neutralised"] == ["x-anthropic-billing-header"]
            if number:
                require_hit(read, extra["reusable_tokens"])
                assert extra["replay"]["replayed_tokens"] > 0
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": _results(answer) or "Read another."})


def _results(answer: anthropic.types.Message) -> list[Any]:
    calls = [block for block in answer.content if block.type == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": call.id, "content": "It says: 7."} for call in calls]


@pytest.mark.parametrize("name", ["litellm", "llm"])
def test_clients_that_run_in_an_environment_of_their_own(
    server: ServerProcess, frameworks: Path, tmp_path: Path, name: str
) -> None:
    """Each later turn finds what the one before had, its prompt and its answer."""
    config = f"- model_id: sessile\n  model_name: default\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(config)
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    program = ROOT / "tests" / "e2e" / "programs" / f"{name}_conversation.py"
    lines = run([frameworks, program, server.url], **environment)
    turns = [json.loads(line) for line in lines]
    assert len(turns) >= 3
    for (before, said, _), (prompt, _, cached) in itertools.pairwise(turns):
        assert 0.95 * (before + said) - 1 <= cached < prompt  # they say nothing of what is reusable


EXAMPLES = ["anthropic_loop", "langgraph_agent", "agents_sdk"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_and_its_output_stand_in_the_docs(server: ServerProcess, request: Any, name: str) -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    code = (ROOT / "examples" / f"{name}.py").read_text()
    assert code.strip() in page
    python = sys.executable if name == "anthropic_loop" else request.getfixturevalue("frameworks")
    lines = run([python, ROOT / "examples" / f"{name}.py", server.url])
    counts = [[int(number) for number in re.findall(r"\d+", line)[:2]] for line in lines if "prompt tokens" in line]
    assert len(counts) == 4
    for (before, _), (_, cached) in itertools.pairwise(counts):
        assert cached >= before, "a later turn finds the whole prompt of the one before it"
    shown = page.partition(f"$ python examples/{name}.py\n")[2].partition("```")[0].splitlines()
    assert without_reuse(lines) == without_reuse(shown)


def test_the_programs_of_the_readme_run_as_they_stand_and_come_to_an_end(server: ServerProcess) -> None:
    """Without a bound of its answers one would go on to the context's end: minutes, then an error."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = []
    for program in programs:
        here = program.replace("http://127.0.0.1:8000", server.url).replace("127.0.0.1:50051", server.grpc_target)
        printed.append(run([sys.executable, "-c", here])[-1])
    openai_client, session = printed
    tokens, cached = (int(number) for number in re.findall(r"\d+", openai_client))
    assert 0.6 * tokens < cached < tokens, "the second question finds the first and its answer"
    assert "TokensBySource(device=" in session


def without_reuse(lines: list[str]) -> list[str]:
    """The lines, but for what was found: other conversations have beginnings too, and what a grammar forced at the end
    of a call may be computed or not yet."""
    return [re.sub(r"\d+ from the cache", "found", line) for line in lines]


def run(command: list[Any], **environment: str) -> list[str]:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_client_that_knows_the_service_by_reflection_alone(server: ServerProcess) -> None:
    """As grpcurl: no generated code, the messages are made from what the server says of itself."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("sessile.v1.SessionService")

        def method(name: str) -> tuple[Any, Any, Any]:
            found = service.methods_by_name[name]
            ask, answer = (message_factory.GetMessageClass(kind) for kind in (found.input_type, found.output_type))
            kind = channel.unary_stream if found.server_streaming else channel.unary_unary
            path = f"/{service.full_name}/{name}"
            return ask, answer, kind(path, ask.SerializeToString, answer.FromString)

        open_request, _, open_ = method("Open")
        session = open_(open_request(system="You are brief.")).session
        request, _, generate = method("Generate")
        for number, text in enumerate(("Name a river.", "Name another."), 1):
            ask = request(session_id=session.session_id)
            ask.input.messages.messages.add(role=number_of(pool, "ROLE_USER"), content=text)
            ask.sampling.max_tokens = 8
            *_, last = generate(ask)
            assert last.finished.turn == number
        assert last.finished.usage.prompt_tokens_by_source.computed < 30


def number_of(pool: descriptor_pool.DescriptorPool, name: str) -> int:
    return int(pool.FindEnumTypeByName("sessile.v1.Role").values_by_name[name].number)
