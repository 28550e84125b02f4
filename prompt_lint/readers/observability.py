"""Exports of gateways and observability tools: LiteLLM, Langfuse, LangSmith, Helicone, Bedrock's invocation log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, Usage, shape_of
from .records import Record
from .requests import request_from
from .times import seconds
from .usage import long_lived, parsed_usage, response_text, usage_of


def looks_like_litellm(value: Any) -> bool:
    """LiteLLM's StandardLoggingPayload."""
    return (
        isinstance(value, dict)
        and "call_type" in value
        and ("model_parameters" in value or "custom_llm_provider" in value)
    )


def read_litellm(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """`cache_hit` is LiteLLM's own response cache and is not read."""
    for record in records:
        value = _expected(file, record, looks_like_litellm, "a LiteLLM log record")
        body: Json = {"model": value.get("model"), "messages": value.get("messages") or []}
        parameters = value.get("model_parameters") or {}
        body.update({k: v for k, v in parameters.items() if k not in ("temperature", "max_tokens", "top_p", "stream")})
        request = Request(body, ApiShape.OPENAI_CHAT, file=file, line=record.line)
        request.complete = isinstance(value.get("messages"), list)
        metadata: Json = value.get("metadata") or {}
        requester = metadata.get("requester_metadata") or {}
        request.session = _text(requester.get("session_id") or metadata.get("session_id") or value.get("trace_id"))
        request.provider = value.get("custom_llm_provider")
        request.usage = usage_of(value.get("response")) or parsed_usage(metadata.get("usage_object") or value)
        started, first, ended = (seconds(value.get(k)) for k in ("startTime", "completionStartTime", "endTime"))
        _clock(request, started, first, ended)
        request.response_text = response_text(value.get("response"))
        yield request


def looks_like_langfuse(value: Any) -> bool:
    """A Langfuse observation."""
    return (
        isinstance(value, dict)
        and "traceId" in value
        and ("usageDetails" in value or "usage" in value)
        and "input" in value
    )


def read_langfuse(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Generations only; other observations are stepped over."""
    for record in records:
        value = record.value
        if not isinstance(value, dict) or "traceId" not in value:
            raise UnusableInput(file, "not a Langfuse observation (traceId is missing)", record.line)
        if value.get("type") not in (None, "GENERATION"):
            continue
        body = _langfuse_body(value)
        request = request_from(file, record.line, body)
        request.session = _text(value.get("sessionId") or value.get("traceId"))
        request.usage = _langfuse_usage(value.get("usageDetails") or value.get("usage") or {})
        _clock(request, *(seconds(value.get(k)) for k in ("startTime", "completionStartTime", "endTime")))
        yield request


def _langfuse_body(value: Json) -> Json:
    given = value.get("input")
    if isinstance(given, list):
        given = {"messages": given}
    elif isinstance(given, str):
        given = {"prompt": given}
    return {"model": value.get("model"), **(given if isinstance(given, dict) else {})}


def _langfuse_usage(usage: Json) -> Usage | None:
    """Whether `input` includes the cached part depends on the SDK that wrote it; the total tells."""
    if not usage:
        return None
    read = next(
        (usage[k] for k in ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read") if k in usage), None
    )
    written_keys = ("cache_creation_input_tokens", "input_cache_creation", "input_cache_write")
    written = next((usage[k] for k in written_keys if k in usage), None)
    if written is None:
        parts = [usage[k] for k in ("input_cache_creation_5m", "input_cache_creation_1h") if k in usage]
        written = sum(parts) if parts else None
    plain, output = int(usage.get("input") or 0), int(usage.get("output") or 0)
    total = usage.get("total")
    extra = int(read or 0) + int(written or 0)
    included = total == plain + output if total is not None else plain >= extra
    return Usage(plain if included else plain + extra, read, written, output)


def looks_like_langsmith(value: Any) -> bool:
    """A LangSmith run."""
    return isinstance(value, dict) and "run_type" in value and "inputs" in value


_LC_ROLES = {
    "SystemMessage": "system",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "ToolMessage": "tool",
    "FunctionMessage": "tool",
}


def read_langsmith(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Runs of type llm; other runs are stepped over."""
    for record in records:
        value = _expected(file, record, looks_like_langsmith, "a LangSmith run")
        if value["run_type"] != "llm":
            continue
        extra: Json = value.get("extra") or {}
        parameters: Json = extra.get("invocation_params") or {}
        metadata: Json = extra.get("metadata") or {}
        messages = value["inputs"].get("messages") or []
        if messages and isinstance(messages[0], list):
            messages = messages[0]
        body = {
            "model": parameters.get("model") or metadata.get("ls_model_name"),
            "messages": [_lc_message(m) for m in messages],
        }
        if parameters.get("tools"):
            body["tools"] = parameters["tools"]
        request = Request(body, ApiShape.OPENAI_CHAT, file=file, line=record.line)
        request.session = _text(metadata.get("thread_id") or metadata.get("session_id") or value.get("trace_id"))
        request.provider = metadata.get("ls_provider")
        request.usage = _langsmith_usage(value)
        request.complete = False  # constructor objects do not show markers and other fields as they were sent
        _clock(request, *(seconds(value.get(k)) for k in ("start_time", "first_token_time", "end_time")))
        yield request


def _lc_message(message: Any) -> Any:
    if not isinstance(message, dict) or "kwargs" not in message:
        return message
    kwargs: Json = message["kwargs"]
    role = _LC_ROLES.get(str((message.get("id") or [""])[-1]), str(kwargs.get("type", "user")))
    kept = {k: kwargs[k] for k in ("content", "tool_calls", "tool_call_id", "name") if kwargs.get(k)}
    return {"role": role, **kept}


def _langsmith_usage(value: Json) -> Usage | None:
    generations = (value.get("outputs") or {}).get("generations") or []
    while isinstance(generations, list) and generations:
        generations = generations[0]
    usage: Json = {}
    if isinstance(generations, dict):
        usage = ((generations.get("message") or {}).get("kwargs") or {}).get("usage_metadata") or {}
    if not usage:
        tokens = value.get("prompt_tokens")
        return Usage(int(tokens), None, None, value.get("completion_tokens")) if tokens else None
    details = usage.get("input_token_details") or {}
    return Usage(
        int(usage.get("input_tokens") or 0),
        details.get("cache_read"),
        details.get("cache_creation"),
        usage.get("output_tokens"),
    )


def looks_like_helicone(value: Any) -> bool:
    """A Helicone request."""
    return (
        isinstance(value, dict)
        and "request_properties" in value
        and ("request_body" in value or "signed_body_url" in value)
    )


def read_helicone(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Bodies that lie behind a signed URL are not fetched: such requests have counts only."""
    for record in records:
        value = _expected(file, record, looks_like_helicone, "a Helicone request")
        body = value.get("request_body")
        if isinstance(body, dict) and shape_of(body):
            request = request_from(file, record.line, body)
        else:
            request = Request(
                {"prompt": "", "model": value.get("request_model")},
                ApiShape.TEXT,
                file=file,
                line=record.line,
                complete=False,
            )
        request.session = _text((value.get("request_properties") or {}).get("Helicone-Session-Id"))
        request.provider = str(value.get("provider") or "").lower() or None
        request.usage = usage_of(value.get("response_body")) or _helicone_usage(value)
        request.timestamp = seconds(value.get("request_created_at"))
        request.ttft_ms, request.latency_ms = value.get("time_to_first_token"), value.get("delay_ms")
        request.response_text = response_text(value.get("response_body"))
        yield request


def _helicone_usage(value: Json) -> Usage | None:
    if value.get("prompt_tokens") is None:
        return None
    return Usage(
        int(value["prompt_tokens"]),
        value.get("prompt_cache_read_tokens"),
        value.get("prompt_cache_write_tokens"),
        value.get("completion_tokens"),
    )


def looks_like_bedrock(value: Any) -> bool:
    """A record of Bedrock's model invocation log."""
    return isinstance(value, dict) and value.get("schemaType") == "ModelInvocationLog"


def read_bedrock(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """Large bodies lie in S3: such requests have counts only."""
    for record in records:
        value = _expected(file, record, looks_like_bedrock, "a Bedrock invocation record")
        given: Json = value.get("input") or {}
        body = given.get("inputBodyJson")
        if isinstance(body, dict) and shape_of(body):
            request = request_from(file, record.line, {"model": value.get("modelId"), **body})
        else:
            request = Request(
                {"prompt": "", "model": value.get("modelId")},
                ApiShape.TEXT,
                file=file,
                line=record.line,
                complete=False,
            )
        answer = (value.get("output") or {}).get("outputBodyJson")
        request.usage = _bedrock_usage(given, value.get("output") or {}) or usage_of(answer)
        request.timestamp = seconds(value.get("timestamp"))
        request.provider = "bedrock"
        request.session = _text((value.get("requestMetadata") or {}).get("session_id"))
        if long_lived(answer):
            request.notes["ttl"] = "1h"
        yield request


def _bedrock_usage(given: Json, output: Json) -> Usage | None:
    if given.get("inputTokenCount") is None:
        return None
    read, written = given.get("cacheReadInputTokenCount"), given.get("cacheWriteInputTokenCount")
    total = int(given["inputTokenCount"]) + int(read or 0) + int(written or 0)
    return Usage(total, read, written, output.get("outputTokenCount"))


def _expected(file: str, record: Record, looks: Any, what: str) -> Json:
    if not looks(record.value):
        raise UnusableInput(file, f"not {what}", record.line)
    value: Json = record.value
    return value


def _clock(request: Request, started: float | None, first: float | None, ended: float | None) -> None:
    request.timestamp = started
    if started is not None and first is not None:
        request.ttft_ms = 1000 * (first - started)
    if started is not None and ended is not None:
        request.latency_ms = 1000 * (ended - started)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
