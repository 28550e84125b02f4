"""``bench-agent quality``: whether the answers stay the same, beside how fast they come."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ..driver.ask import Conversation
from ..driver.openai_http import OpenAiDriver
from ..errors import BenchError, TargetError
from ..quality.agreement import Agreement, agreement, answer_again, converse
from ..quality.perplexity import perplexity
from ..quality.record import QualityRecord, ServerQuality, print_quality, write_quality
from ..quality.validity import json_answers, tool_calls
from ..report.record import ServerFacts
from ..report.terminal import terminal
from ..targets.target import Target, TargetSpec, reach
from ..workload.plan import Workload
from .flag_types import share, whole
from .measuring import result_folder
from .options import add_target_flags, add_workload_flags, load_workload, target_spec
from .signals import Signals

COLD = "cold"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    add_target_flags(parser)
    add_workload_flags(parser)
    group = parser.add_argument_group("quality")
    group.add_argument("--reference", metavar="ADDRESS|cold", help="another server, or the same with a cold cache")
    group.add_argument("--reference-model", metavar="NAME", help="the model to ask the reference for")
    group.add_argument("--max-tokens", type=whole(1), default=48, metavar="N", help="of each answer")
    group.add_argument("--perplexity", type=Path, metavar="FILE", help="of this text")
    group.add_argument("--perplexity-tokens", type=whole(1), default=200, metavar="N", help="of its beginning")
    group.add_argument("--no-validity", action="store_true", help="do not ask for tool calls and JSON")
    group.add_argument("--label", metavar="TEXT", help="the result's name in tables")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="where quality.json goes")
    group.add_argument("--require-agreement", type=share, metavar="SHARE", help="exit with 4 below this share")


def execute(given: argparse.Namespace) -> int:
    """0, or 4 when fewer answers are identical than required. Raises BenchError."""
    if given.require_agreement is not None and given.reference is None:
        raise BenchError("--require-agreement needs something to agree with", remedy="pass --reference ADDRESS or cold")
    workload, _ = load_workload(given)
    folder = result_folder(given, given.label or "quality")
    text = None if given.perplexity is None else _text(given.perplexity)
    record = asyncio.run(_check(given, workload, folder, text))
    console = terminal()
    print_quality(record, console)
    console.print(f"result: {write_quality(record, folder)}", soft_wrap=True)
    if text is not None and record.target_quality.perplexity is None:
        console.print("no perplexity: the server tells no probabilities", style="yellow")
    found = record.agreement
    below = given.require_agreement is not None and (found is None or found.identical < given.require_agreement)
    return 4 if below else 0


async def _check(given: argparse.Namespace, workload: Workload, folder: Path, text: str | None) -> QualityRecord:
    async with AsyncExitStack() as stack:
        stack.enter_context(Signals())
        target = await stack.enter_async_context(reach(target_spec(given), folder))
        driver = _http(target)
        found: Agreement | None = None
        other_facts: ServerFacts | None = None
        other_quality: ServerQuality | None = None
        if given.reference is not None:
            if given.reference == COLD:
                opened = cold_conversations(target, secrets.token_hex(4))
            else:
                other = await stack.enter_async_context(reach(_reference(given), folder))
                opened, other_facts = other.driver.conversation, other.facts
                other_quality = await _quality_of(_http(other), given, text)
            answered = await converse(workload, driver.conversation, given.max_tokens)
            found = agreement(answered, await answer_again(answered, opened))
        return QualityRecord(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            target=target.facts,
            reference=other_facts,
            compared_with={None: "nothing", COLD: "itself, cold"}.get(given.reference, str(given.reference)),
            workload=workload.name,
            workload_sha256=workload.sha256(),
            agreement=found,
            target_quality=await _quality_of(driver, given, text),
            reference_quality=other_quality,
        )


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise BenchError(f"{path} cannot be read: {reason}", field="perplexity") from None
    if not text.strip():
        raise BenchError(f"{path} has no text", field="perplexity")
    return text


async def _quality_of(driver: OpenAiDriver, given: argparse.Namespace, text: str | None) -> ServerQuality:
    return ServerQuality(
        tool_calls=None if given.no_validity else await tool_calls(driver, 4 * given.max_tokens),
        json_answers=None if given.no_validity else await json_answers(driver, 4 * given.max_tokens),
        perplexity=None if text is None else await perplexity(driver, text, given.perplexity_tokens),
    )


def _http(target: Target) -> OpenAiDriver:
    if not isinstance(target.driver, OpenAiDriver):
        raise TargetError("quality is checked over HTTP", remedy="pass an http:// address, or --wire http")
    return target.driver


def cold_conversations(target: Target, nonce: str) -> Callable[[str], Conversation]:
    """Opens conversations that share no cache, with any other or with each other. They raise BenchError where the
    server has no such thing."""
    driver = _http(target)

    def opened(name: str) -> Conversation:
        conversation = driver.cold_conversation(f"{nonce}-{name}")
        if conversation is None:
            raise BenchError(
                f"a server of the dialect {driver.dialect.name} has no way to leave its cache out",
                remedy="start a second one and pass its address as --reference",
            )
        return conversation

    opened("first")  # over HTTP nothing is sent by that

    return opened


def _reference(given: argparse.Namespace) -> TargetSpec:
    spec = target_spec(given, address=given.reference, serve=None, model=given.reference_model, dialect=None)
    return replace(spec, server_name=None, server_version=None, server_flags=None, quantisation=None)
