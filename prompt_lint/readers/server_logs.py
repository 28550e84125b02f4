"""Logs of inference servers: vLLM, SGLang, llama-server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import ApiShape, Json, Request, Usage
from .records import Record
from .times import seconds

_STRING = r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_VLLM_OLD = re.compile(rf"Received request (\S+): prompt: {_STRING}, params:")
_VLLM_DETAILS = re.compile(rf"Request (\S+) details: prompt: {_STRING}, prompt_token_ids: (\[[\d, ]*\]|None)")
_VLLM_OUTPUT = re.compile(rf"Generated response (\S+): output: {_STRING}")
_VLLM_ANY = re.compile(
    r"(?:INFO|DEBUG) \d\d-\d\d [\d:]+ .*(?:Received request \S+: |Engine \d+: Avg prompt throughput"
    r"|Prefix cache hit rate|Request \S+ details: prompt)"
)

_NO_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)  # all that `literal_eval` raises


def looks_like_vllm(head: str) -> bool:
    """vLLM's own log lines, old or new."""
    return bool(_VLLM_ANY.search(head))


def read_vllm(file: str, lines: Iterator[tuple[int, str]]) -> Iterator[Request]:
    """Requests whose prompt was logged. Raises: UnusableInput when no prompt was."""
    waiting: dict[str, Request] = {}
    count = 0
    for number, line in lines:
        match = _VLLM_OLD.search(line) or _VLLM_DETAILS.search(line)
        if match:
            count += 1
            done = list(waiting.values())
            waiting = {match.group(1): _from_log(file, number, _unquoted(match.group(2)), "vllm")}
            yield from done
            continue
        output = _VLLM_OUTPUT.search(line)
        if output and output.group(1) in waiting:
            waiting[output.group(1)].response_text = _unquoted(output.group(2))
    yield from waiting.values()
    if count == 0:
        raise UnusableInput(file, "this vLLM log has no prompts; run vLLM with --enable-log-requests at DEBUG level")


def _from_log(file: str, line: int, prompt: str, provider: str) -> Request:
    request = Request({"prompt": prompt}, ApiShape.TEXT, file=file, line=line, provider=provider)
    request.complete = not prompt.endswith("…")
    return request


def _unquoted(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except _NO_LITERAL:
        return text[1:-1]


def looks_like_sglang_json(value: Any) -> bool:
    """SGLang's request log in JSON."""
    return isinstance(value, dict) and str(value.get("event", "")).startswith("request.") and "rid" in value


def read_sglang_json(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """A request is given out when it has finished; those without an end are given out last."""
    waiting: dict[str, Request] = {}
    for record in records:
        if not looks_like_sglang_json(record.value):
            raise UnusableInput(file, "not an event of SGLang's request log", record.line)
        value: Json = record.value
        rid = str(value["rid"])
        if value["event"] == "request.received":
            waiting[rid] = _sglang_request(file, record)
        elif rid in waiting:
            request = waiting.pop(rid)
            _finished(request, value.get("out") or {})
            yield request
    yield from waiting.values()


def _sglang_request(file: str, record: Record) -> Request:
    given: Json = record.value.get("obj") or {}
    if isinstance(given.get("input_ids"), list):
        request = Request(
            {"input_ids": given["input_ids"]}, ApiShape.TOKENS, file=file, line=record.line, provider="sglang"
        )
    else:
        request = _from_log(file, record.line, str(given.get("text") or ""), "sglang")
    request.session = (given.get("session_params") or {}).get("id")
    request.timestamp = seconds(record.value.get("timestamp"))
    return request


def _finished(request: Request, out: Json) -> None:
    meta: Json = out.get("meta_info") or {}
    request.response_text = out.get("text")
    if "prompt_tokens" in meta:
        request.usage = Usage(
            int(meta["prompt_tokens"]), meta.get("cached_tokens"), None, meta.get("completion_tokens")
        )
    latency = meta.get("e2e_latency")
    request.latency_ms = 1000 * latency if latency else None


_SGLANG_RECEIVE = re.compile(rf"Receive: obj=GenerateReqInput\(rid='([^']*)', text={_STRING}")
_SGLANG_FINISH = re.compile(r"Finish: obj=GenerateReqInput\(rid='([^']*)'.*?out=(\{.*\})\s*$")
_SGLANG_ANY = re.compile(r"obj=GenerateReqInput\(|Prefill batch\. #new-seq")
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def looks_like_sglang(head: str) -> bool:
    """SGLang's log."""
    return bool(_SGLANG_ANY.search(head))


def read_sglang(file: str, lines: Iterator[tuple[int, str]]) -> Iterator[Request]:
    """Requests of a log written with --log-requests. Raises: UnusableInput when none was logged."""
    waiting: dict[str, Request] = {}
    count = 0
    for number, line in lines:
        received = _SGLANG_RECEIVE.search(line)
        if received:
            count += 1
            request = _from_log(file, number, _unquoted(received.group(2)), "sglang")
            stamp = _STAMP.match(line)
            request.timestamp = seconds(stamp.group(1)) if stamp else None
            waiting[received.group(1)] = request
            continue
        finished = _SGLANG_FINISH.search(line)
        if finished and finished.group(1) in waiting:
            request = waiting.pop(finished.group(1))
            _finished(request, _literal(finished.group(2)))
            yield request
    yield from waiting.values()
    if count == 0:
        raise UnusableInput(
            file, "this SGLang log has no requests; run SGLang with --log-requests --log-requests-level 3"
        )


def _literal(text: str) -> Json:
    try:
        value = ast.literal_eval(text)
    except _NO_LITERAL:
        return {}
    return value if isinstance(value, dict) else {}


_LLAMA_TASK = re.compile(r"id\s+(\d+) \| task (\d+) \|")
_LLAMA_PROMPT = re.compile(r"n_prompt_tokens = (\d+)|task\.n_tokens = (\d+)")
_LLAMA_KEPT = re.compile(
    r"(?:kv cache rm|memory_seq_rm) \[(\d+), end\)|n_past = (\d+), memory_seq_rm|n_tokens = (\d+), memory_seq_rm"
)
_LLAMA_EVAL = re.compile(r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens")


def looks_like_llama(head: str) -> bool:
    """llama-server's log."""
    return "slot update_slots" in head or "slot launch_slot_" in head or "slot print_timing" in head


def read_llama(file: str, lines: Iterator[tuple[int, str]]) -> Iterator[Request]:
    """Counts of each task; llama-server logs no prompts. Raises: UnusableInput when no task was logged."""
    tasks: dict[str, Request] = {}
    kept: dict[str, int] = {}
    for number, line in lines:
        task = _LLAMA_TASK.search(line)
        if not task:
            continue
        key = task.group(2)
        prompt, cached, evaluated = _LLAMA_PROMPT.search(line), _LLAMA_KEPT.search(line), _LLAMA_EVAL.search(line)
        if prompt and key not in tasks:
            request = Request(
                {"prompt": ""}, ApiShape.TEXT, file=file, line=number, complete=False, provider="llama-server"
            )
            request.session = f"slot {task.group(1)}"
            request.usage = Usage(int(prompt.group(1) or prompt.group(2)))
            tasks[key] = request
        if cached and key not in kept:
            kept[key] = int(next(g for g in cached.groups() if g))
        if evaluated and key in tasks:
            tasks[key].ttft_ms = float(evaluated.group(1))
    for key, request in tasks.items():
        if request.usage and key in kept:
            request.usage = Usage(request.usage.prompt_tokens, kept[key])
    if not tasks:
        raise UnusableInput(file, "this llama-server log has no tasks; run llama-server with --verbose-prompt or -lv 1")
    yield from tasks.values()
