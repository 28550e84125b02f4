"""The gRPC front on the wire: what a client that is not ours may send, and what it gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from open_gate import open_gate

from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub
from sessile.server.readiness import Readiness, ServerState
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.errors import CapacityError, ConfigError, StoreError

SERVICE = "sessile.v1.SessionService"


@pytest.fixture
async def channel(front: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(front.target) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return SessionServiceStub(channel)


async def failure(call: Any) -> tuple[grpc.StatusCode, str, dict[str, Any]]:
    """Code, message and details by their type of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await (_read_to_the_end(call) if hasattr(call, "read") else call)
    details: dict[str, Any] = {}
    for key, value in failed.value.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for packed in status_pb2.Status.FromString(value).details:
                kind = packed.TypeName().rsplit(".", 1)[-1]
                details[kind] = getattr(error_details_pb2, kind)()
                packed.Unpack(details[kind])
    return failed.value.code(), failed.value.details() or "", details


async def _read_to_the_end(call: Any) -> None:
    async for _ in call:
        pass


async def opened(stub: Any, **fields: Any) -> pb.Session:
    return (await stub.Open(pb.OpenRequest(**fields))).session


def says(text: str) -> pb.TurnInput:
    return pb.TurnInput(messages=pb.MessageList(messages=[pb.Message(role=pb.ROLE_USER, content=text)]))


async def test_an_error_fits_the_trailers_whatever_was_sent(stub: Any) -> None:
    """Clients take 8 KiB of them, and would else see RESOURCE_EXHAUSTED, of their own, in the error's place."""
    code, message, details = await failure(stub.Open(pb.OpenRequest(model="m" * 20_000)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("the model 'mmm")
    assert details["ErrorInfo"].metadata["field"] == "model"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"input": pb.TurnInput()}, "input"),
        ({"input": pb.TurnInput(messages=pb.MessageList())}, "input.messages"),
        (
            {"input": pb.TurnInput(messages=pb.MessageList(messages=[pb.Message(content="x")]))},
            "input.messages[0].role",
        ),
        ({"input": pb.TurnInput(messages=pb.MessageList(messages=[pb.Message(role=99)]))}, "input.messages[0].role"),
        ({"input": pb.TurnInput(text="")}, "input"),
        ({"input": pb.TurnInput(token_ids=pb.TokenList(ids=[1, 2**32 - 1]))}, "input[1]"),
        ({"input": pb.TurnInput(tool_result=pb.ToolResult(content="x"))}, "input.tool_call_id"),
        ({"sampling": pb.SamplingParams(temperature=float("nan"))}, "sampling.temperature"),
        ({"sampling": pb.SamplingParams(temperature=-1)}, "sampling.temperature"),
        ({"sampling": pb.SamplingParams(max_tokens=0)}, "sampling.max_tokens"),
        ({"sampling": pb.SamplingParams(top_p=0)}, "sampling.top_p"),
        ({"sampling": pb.SamplingParams(logprobs=21)}, "sampling.logprobs"),
        ({"sampling": pb.SamplingParams(logit_bias={10**6: 1.0})}, "sampling.logit_bias[1000000]"),
        ({"sampling": pb.SamplingParams(stop_token_ids=[10**6])}, "sampling.stop_token_ids[0]"),
        ({"stop": ["x"] * 2000}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"priority": 17}, "priority"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "\0"}, "session_id"),
        ({"request_id": "x" * 1000}, "request_id"),
    ],
)
async def test_bad_input_names_its_field(stub: Any, fields: dict[str, Any], field: str) -> None:
    session = await opened(stub)
    request = pb.GenerateRequest(**({"session_id": session.session_id} | fields))
    code, message, details = await failure(stub.Generate(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == field
    assert details["BadRequest"].field_violations[0].description == message
    assert (details["ErrorInfo"].domain, details["ErrorInfo"].reason) == ("sessile", "INVALID_REQUEST")
    assert "RetryInfo" not in details


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": "gpt-9"}, "model"),
        ({"tools": [pb.Tool(name="")]}, "tools[0].name"),
        (
            {"tools": [pb.Tool(name="f"), pb.Tool(name="g", parameters_json='{"type": "array"}')]},
            "tools[1].parameters_json",
        ),
        ({"tools": [pb.Tool(name="f", parameters_json="[]")]}, "tools[0].parameters_json"),
        ({"tools": [pb.Tool(name="f", parameters_json="{" * 100_000)]}, "tools[0].parameters_json"),
    ],
)
async def test_sessions_that_cannot_be_opened(stub: Any, fields: dict[str, Any], field: str) -> None:
    code, _, details = await failure(stub.Open(pb.OpenRequest(**fields)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details["ErrorInfo"].metadata["field"] == field


async def test_points_must_be_named(stub: Any) -> None:
    session = await opened(stub)
    for request in (pb.RollbackRequest(), pb.RollbackRequest(to=pb.Point())):
        request.session_id = session.session_id
        code, _, details = await failure(stub.Rollback(request))
        assert (code, details["ErrorInfo"].metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "to")
    request = pb.RollbackRequest(session_id=session.session_id, to=pb.Point(turn=-5))
    code, _, details = await failure(stub.Rollback(request))
    assert (code, details["ErrorInfo"].metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "to.turn")


async def raw(channel: grpc.aio.Channel, method: str, body: bytes) -> Any:
    return await channel.unary_unary(f"/{SERVICE}/{method}")(body)


@pytest.mark.parametrize("body", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff", b"\x0a\x7f"])
async def test_what_is_no_message(channel: grpc.aio.Channel, body: bytes) -> None:
    """Invalid UTF-8 in a text, garbage, a message cut off."""
    code, message, details = await failure(raw(channel, "Open", body))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in message
    assert details["ErrorInfo"].reason == "INVALID_REQUEST"


async def test_unknown_fields_are_refused(channel: grpc.aio.Channel, stub: Any) -> None:
    """What a newer client asks for is not ignored in silence, however deep it stands."""
    unknown = b"\xd2\x06\x01x"  # field 106
    code, message, details = await failure(raw(channel, "Open", unknown))
    assert (code, details["ErrorInfo"].metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "106")
    tool = pb.Tool.FromString(pb.Tool(name="f").SerializeToString() + unknown)
    code, message, details = await failure(stub.Open(pb.OpenRequest(tools=[pb.Tool(name="g"), tool])))
    assert (code, details["ErrorInfo"].metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "tools[1].106")
    assert "Tool has no field 106" in message


async def test_a_message_over_the_limit(front: Any, stub: Any) -> None:
    session = await opened(stub)
    request = pb.GenerateRequest(session_id=session.session_id, input=says("x" * (17 * 2**20)))
    code, _, _ = await failure(stub.Generate(request))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    request = pb.GenerateRequest(session_id=session.session_id, input=says("x" * (10 * 2**20)))
    code, _, details = await failure(stub.Generate(request))
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert details["ErrorInfo"].metadata["limit"] == "4096"
    assert details["BadRequest"]


async def test_statuses_of_the_design(front: Any, stub: Any) -> None:
    session = await opened(stub)
    ask = {"session_id": session.session_id, "input": says("x")}
    code, _, details = await failure(stub.Get(pb.GetRequest(session_id="ses_none")))
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    code, _, details = await failure(stub.Generate(pb.GenerateRequest(**ask, expected_version=7)))
    assert code is grpc.StatusCode.ABORTED
    assert (details["ErrorInfo"].metadata["expected"], details["ErrorInfo"].metadata["actual"]) == ("7", "1")
    front.engine.will_say([64], fail_after=0, error=CapacityError("the queue is full", retry_after_s=2.5))
    code, _, details = await failure(stub.Generate(pb.GenerateRequest(**ask)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 2500
    front.engine.will_say([64, 65], fail_after=1)
    code, _, details = await failure(stub.Generate(pb.GenerateRequest(**ask)))
    assert (code, details["RetryInfo"].retry_delay.ToMilliseconds()) == (grpc.StatusCode.UNAVAILABLE, 500)
    front.engine.will_say([64], fail_after=0, error=StoreError("damaged", remedy="restore it"))
    code, message, details = await failure(stub.Generate(pb.GenerateRequest(**ask)))
    assert (code, message) == (grpc.StatusCode.INTERNAL, "damaged (restore it)")
    front.engine.ready = type(front.engine)(fingerprint="weights-2").ready
    code, _, details = await failure(stub.Generate(pb.GenerateRequest(**ask)))
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_CHANGED")
    assert details["ErrorInfo"].metadata["server_fingerprint"] == "weights-2"
    await front.manager.drain()
    code, _, details = await failure(stub.Generate(pb.GenerateRequest(**ask)))
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert details["RetryInfo"]


async def test_an_unexpected_error_is_logged_and_told_by_its_id(
    front: Any, stub: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(front.store, "session", breaks)
    with caplog.at_level(logging.ERROR):
        code, message, details = await failure(stub.Get(pb.GetRequest(session_id="s")))
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in message
    incident = message.split("incident ")[1].split(" ")[0]
    assert any(incident in record.message and record.exc_info for record in caplog.records)
    code, _, _ = await failure(stub.Generate(pb.GenerateRequest(session_id="s", input=says("x"))))
    assert code is grpc.StatusCode.INTERNAL


async def test_the_tenant_in_the_metadata(stub: Any) -> None:
    metadata = (("x-sessile-tenant", "a"),)
    session = (await stub.Open(pb.OpenRequest(), metadata=metadata)).session
    assert session.tenant == "a"
    assert (await stub.Get(pb.GetRequest(session_id=session.session_id, tenant="a"))).session == session
    code, _, _ = await failure(stub.Get(pb.GetRequest(session_id=session.session_id)))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _, details = await failure(
        stub.Get(pb.GetRequest(session_id=session.session_id, tenant="b"), metadata=metadata)
    )
    assert (code, details["ErrorInfo"].metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "tenant")
    listed = await stub.List(pb.ListRequest(), metadata=metadata)
    assert [one.session_id for one in listed.sessions] == [session.session_id]


async def test_a_client_that_hangs_up_ends_its_turn(front: Any, stub: Any) -> None:
    session = await opened(stub)
    front.engine.will_say([64, 65, 257], gate=asyncio.Event())
    call = stub.Generate(pb.GenerateRequest(session_id=session.session_id, input=says("x")))
    assert (await call.read()).delta.text == "a"
    call.cancel()
    await front.engine.idle.wait()
    assert len(front.engine.aborted) == 1
    assert not (await stub.Get(pb.GetRequest(session_id=session.session_id))).session.busy


async def test_a_client_that_does_not_read_stops_nobody(front: Any, stub: Any) -> None:
    slow, quick = await opened(stub), await opened(stub)
    front.engine.will_say([*[64] * 3000, 257])
    call = stub.Generate(pb.GenerateRequest(session_id=slow.session_id, input=says("x")))
    answers = aiter(call)
    await anext(answers)
    events = [event async for event in stub.Generate(pb.GenerateRequest(session_id=quick.session_id, input=says("y")))]
    assert events[-1].finished.turn == 1
    rest = [event async for event in answers]
    assert rest[-1].finished.usage.completion_tokens == 3001


async def test_health(front: Any, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    for service in ("", SERVICE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await front.server.report(Readiness(state=ServerState.DRAINING, reason=""))
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_describes_the_service(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[no-untyped-call]
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    assert SERVICE in {service.name for service in listed.list_services_response.service}
    assert any(b"GenerateRequest" in file for file in described.file_descriptor_response.file_descriptor_proto)


async def test_a_port_in_use(front: Any) -> None:
    second = RpcServer(front.manager, open_gate(), GrpcConfig(port=front.port))
    with pytest.raises(ConfigError) as taken:
        await second.start()
    assert taken.value.field == "grpc.port"
    assert "--grpc-port" in (taken.value.remedy or "")
    await second.stop(0)


async def test_an_unknown_method(channel: grpc.aio.Channel) -> None:
    code, _, _ = await failure(raw(channel, "Frobnicate", b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED
