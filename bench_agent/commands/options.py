"""Flags that several commands have, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BenchError
from ..load.attempts import RETRIES
from ..load.shape import Arrivals, History, LoadShape
from ..metrics.cost import Price, parse_price
from ..metrics.slo import parse_slo
from ..metrics.summary import Judgement
from ..report.terminal import terminal
from ..report.wording import WIRES
from ..targets.launchers import LAUNCHERS
from ..targets.target import TargetSpec
from ..traces.formats import FORMATS, read_workload
from ..traces.source import BadLines
from ..workload.adjust import Adjustments, adjust
from ..workload.distributions import parse_distribution
from ..workload.plan import Workload
from ..workload.presets import PRESETS, preset
from ..workload.synthetic import synthetic_workload
from .flag_types import header, header_name, not_negative, positive, whole, words


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    group = parser.add_argument_group("server")
    group.add_argument("--target", metavar="ADDRESS", help="http://HOST:PORT (OpenAI's protocol) or grpc://HOST:PORT")
    group.add_argument("--serve", choices=[known.name for known in LAUNCHERS], help="start a server for the run")
    group.add_argument(
        "--serve-flags", type=words, metavar="FLAGS", default=(), help="flags for the started server, in one text"
    )
    group.add_argument("--serve-python", metavar="PATH", help="the interpreter of the server's own environment")
    group.add_argument("--start-timeout", type=positive, metavar="S", help="of a started server (600; vllm 1800)")
    group.add_argument("--wire", choices=tuple(WIRES), default="http", help="how a started sessile is spoken to")
    group.add_argument("--model", metavar="NAME", help="the model to ask for, or to serve")
    group.add_argument("--dialect", metavar="NAME", help="sessile, vllm, llama-server, llama-cpp-python, openai")
    group.add_argument("--server-name", metavar="NAME", help="for the record, where the server does not say")
    group.add_argument("--server-version", metavar="TEXT", help="for the record, where the server does not say")
    group.add_argument(
        "--server-flags", type=words, metavar="FLAGS", help="for the record: the flags it was started with"
    )
    group.add_argument("--quantisation", metavar="TEXT", help="for the record: bf16, q4_1, …")
    group.add_argument("--server-hardware", metavar="TEXT", help="for the record, when it is another machine")
    group.add_argument(
        "--header", type=header, metavar="NAME=VALUE", action="append", default=[], help="sent with each request"
    )
    group.add_argument("--extra", metavar="JSON", default="{}", help="merged into each request's body")
    group.add_argument(
        "--session-header",
        type=header_name,
        metavar="NAME",
        help="a header that says the session's name (x-session-id)",
    )
    group.add_argument("--tenant", default="", help="Sessile's tenant (else each run has its own)")
    group.add_argument("--keep-cache", action="store_true", help="use what earlier runs left in the server's cache")
    group.add_argument("--timeout", type=positive, default=600.0, metavar="S", help="of one turn")


def target_spec(given: argparse.Namespace, **changes: Any) -> TargetSpec:
    """Raises BenchError for a flag that cannot be read."""
    try:
        extra = msgspec.json.decode(given.extra, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BenchError(f"--extra is not a JSON object: {error}") from None
    spec = {
        "address": given.target,
        "serve": given.serve,
        "serve_flags": given.serve_flags,
        "serve_python": given.serve_python,
        "wire": given.wire,
        "model": given.model,
        "dialect": given.dialect,
        "server_name": given.server_name,
        "server_version": given.server_version,
        "server_flags": given.server_flags,
        "quantisation": given.quantisation,
        "hardware": given.server_hardware,
        "headers": dict(given.header),
        "extra": extra,
        "session_header": given.session_header,
        "tenant": given.tenant,
        "own_cache": not given.keep_cache,
        "timeout_s": given.timeout,
        "start_timeout_s": given.start_timeout,
    }
    return TargetSpec(**(spec | changes))


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Which sessions."""
    names = ", ".join(PRESETS)
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload", required=True, metavar="FILE|NAME", help=f"a trace file or folder, or a made-up agent: {names}"
    )
    add_format_flags(group)
    group.add_argument(
        "--sessions", type=whole(1), metavar="N", help="the first N sessions; of a made-up agent, how many (8)"
    )
    group.add_argument("--max-turns", type=whole(1), metavar="N", help="at most N turns a session")
    group.add_argument("--max-context", type=whole(1), metavar="TOKENS", help="leave out turns that would be longer")
    group.add_argument("--output-tokens", type=whole(1), metavar="N", help="all answers as long as this")
    group.add_argument("--max-output-tokens", type=whole(1), metavar="N", help="no answer longer than this")
    group.add_argument(
        "--scale", type=positive, default=1.0, metavar="F", help="lengths of made-up and hash-id prompts times F"
    )
    group.add_argument(
        "--gap", metavar="DIST", help="gaps between turns: 0.2, uniform:0,0.4, exp:0.2 (else the trace's)"
    )
    group.add_argument("--gap-cap", type=not_negative, metavar="S", help="no gap longer than this")
    group.add_argument("--fill-unrecorded", action="store_true", help="make up the system prompt that a trace lacks")
    group.add_argument("--seed", type=int, default=0, help="the same seed is the same load")


def add_format_flags(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """How a trace file is read."""
    formats = [known.name for known in FORMATS]
    group.add_argument(
        "--format", choices=formats, metavar="NAME", help=f"of the file, if not seen: {', '.join(formats)}"
    )
    group.add_argument("--skip-bad", action="store_true", help="leave broken lines out instead of stopping at them")


def load_workload(given: argparse.Namespace) -> tuple[Workload, Adjustments]:
    """The workload with the changes asked for; what was left out of it is said on standard error. Raises BenchError."""
    changes = Adjustments(
        max_sessions=given.sessions,
        max_turns=given.max_turns,
        max_context=given.max_context,
        max_output_tokens=given.max_output_tokens,
        output_tokens=given.output_tokens,
        scale=given.scale,
        gap=None if given.gap is None else parse_distribution(given.gap),
        gap_cap_s=given.gap_cap,
        fill_unrecorded=given.fill_unrecorded,
        seed=given.seed,
    )
    workload, changes = _changed_workload(given, changes)
    if not workload.sessions:
        raise BenchError(
            f"nothing is left of {given.workload} to send",
            field="workload",
            remedy="raise --max-context, or give a trace that has turns",
        )
    for note in workload.notes:
        terminal(stderr=True).print(f"note: {note}", style="dim", soft_wrap=True)
    return workload, changes


def _changed_workload(given: argparse.Namespace, changes: Adjustments) -> tuple[Workload, Adjustments]:
    path = Path(given.workload)
    if path.exists():
        workload = read_workload(path, BadLines(skip=given.skip_bad), given.format)
        return adjust(workload, changes), changes
    if path.suffix or "/" in given.workload:
        raise BenchError(f"there is no file {given.workload}", field="workload")
    shape = preset(given.workload)
    if given.scale != 1.0:
        shape = shape.scaled(given.scale)
    workload = synthetic_workload(given.workload, shape, sessions=given.sessions or 8, seed=given.seed)
    return adjust(workload, msgspec.structs.replace(changes, scale=1.0)), changes


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """How the sessions are put to the server."""
    group = parser.add_argument_group("load")
    group.add_argument("--concurrency", type=whole(1), default=1, metavar="N", help="sessions at a time")
    group.add_argument("--rate", type=positive, metavar="R", help="sessions a second, instead of a number at a time")
    group.add_argument(
        "--arrivals",
        choices=[kind.value for kind in Arrivals],
        help="closed (with --concurrency), poisson or constant (with --rate), or as in the trace",
    )
    group.add_argument(
        "--speedup", type=positive, default=1.0, metavar="F", help="the trace's arrivals F times as fast"
    )
    group.add_argument("--ramp", type=not_negative, default=0.0, metavar="S", help="spread the first sessions' starts")
    group.add_argument("--duration", type=positive, metavar="S", help="run sessions again until then")
    group.add_argument("--repeats", type=whole(1), default=1, metavar="N", help="the whole load N times, for intervals")
    group.add_argument(
        "--history",
        choices=[kind.value for kind in History],
        default=History.SAMPLED.value,
        help="answers that later turns build on: the server's own, or those of the trace",
    )
    group.add_argument(
        "--retries", type=whole(0), default=RETRIES, metavar="N", help="for a busy or unreachable server"
    )
    group.add_argument("--free-length", action="store_true", help="let the model end its answers")
    group.add_argument("--temperature", type=not_negative, default=0.0, help="of sampling (0)")
    group.add_argument("--no-tools", action="store_true", help="do not send the trace's tool definitions")
    group.add_argument("--warm-up", type=whole(0), default=2, metavar="N", help="turns before, not measured")
    group.add_argument("--no-calibrate", action="store_true", help="no cold prompts before (no hit rate by time)")


def load_shape(given: argparse.Namespace) -> LoadShape:
    """Raises BenchError."""
    arrivals = given.arrivals or (Arrivals.POISSON if given.rate else Arrivals.CLOSED)
    shape = LoadShape(
        arrivals=Arrivals(arrivals),
        concurrency=given.concurrency,
        rate=given.rate,
        speedup=given.speedup,
        ramp_s=given.ramp,
        duration_s=given.duration,
        repeats=given.repeats,
        seed=given.seed,
        history=History(given.history),
        retries=given.retries,
        exact_length=not given.free_length,
        temperature=given.temperature,
        send_tools=not given.no_tools,
    )
    shape.check()
    return shape


def add_judgement_flags(parser: argparse.ArgumentParser) -> None:
    """What is judged, and where the result goes."""
    group = parser.add_argument_group("result")
    group.add_argument("--slo", metavar="BOUNDS", help="ttft=500ms,itl=50ms (also tpot, e2e): counts goodput")
    group.add_argument("--price", metavar="PRICES", help="in=0.5,cached=0.05,out=1.5: money for a million tokens")
    group.add_argument("--machine-hour", type=not_negative, metavar="MONEY", help="what the machine costs an hour")
    group.add_argument(
        "--limits", metavar="PARAMETERS,BYTES", help="of the model: draws this machine's limit (needs torch)"
    )
    group.add_argument(
        "--null-seconds", type=not_negative, default=2.0, metavar="S", help="against the null server; 0: leave out"
    )
    group.add_argument("--label", metavar="TEXT", help="the result's name in tables and plots")
    group.add_argument("--git-revision", metavar="TEXT", help="for the record, outside of a checkout")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="where the result goes")


def judgement(given: argparse.Namespace) -> Judgement:
    """Raises BenchError."""
    price = None if given.price is None else parse_price(given.price)
    if given.machine_hour is not None:
        if price is not None:
            raise BenchError("--price and --machine-hour are two ways to count one cost", remedy="pass one of them")
        price = Price(machine_hour=given.machine_hour)
    return Judgement(slo=None if given.slo is None else parse_slo(given.slo), price=price)
