"""The record of a run: what was measured, on what, of what, with what; and the files that hold it.

A result folder has ``record.json`` (this), and ``turns.jsonl`` (one turn a line, written as turns end, so that it is
there whatever happens to the harness).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import CompareError
from ..load.runner import Ended
from ..load.shape import LoadShape
from ..metrics.loop_lag import Lag
from ..metrics.machine import Hardware, MachineLoad
from ..metrics.prefill_fit import PrefillFit
from ..metrics.process_usage import ProcessUsage
from ..metrics.records import RepeatRecord
from ..metrics.roofline import Limits
from ..metrics.summary import Summary
from ..workload.adjust import Adjustments
from .files import made_folder, write_whole

SCHEMA = "sessile-bench-record-1"
RECORD_FILE = "record.json"
TURNS_FILE = "turns.jsonl"


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The server. ``flags`` None: not known. ``start_s``: from its start to ready, when the harness started it.

    ``own_cache``: the run could not find what others had left in the server's cache.
    """

    name: str | None
    version: str | None
    model: str | None
    quantisation: str | None
    flags: tuple[str, ...] | None
    address: str
    wire: str
    dialect: str
    start_s: float | None = None
    hardware: str | None = None
    own_cache: bool = False


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result comes from."""

    created_at: str
    server: ServerFacts
    hardware: Hardware
    machine_load: MachineLoad
    git_revision: str | None
    harness_version: str


class WorkloadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The workload. ``sha256`` is of what is sent, ``source_sha256`` of the files it was read from."""

    name: str
    format: str
    sha256: str
    source_sha256: str
    seed: int
    sessions: int
    turns: int
    adjustments: Adjustments
    notes: tuple[str, ...]


class ClientOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """What the harness adds. ``null_server``: seconds a turn against a server of known times, with as many sessions."""

    lag: Lag | None
    null_server_p50_s: float | None = None
    null_server_p99_s: float | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    schema: str = SCHEMA
    label: str
    complete: bool
    ended: Ended
    provenance: Provenance
    workload: WorkloadFacts
    load: LoadShape
    summary: Summary
    repeats: tuple[RepeatRecord, ...]
    client: ClientOverhead
    prefill: PrefillFit | None = None
    server_process: ProcessUsage | None = None
    limits: Limits | None = None

    def missing(self) -> list[str]:
        """What a comparison needs and the record lacks, each with the flag that says it."""
        server = self.provenance.server
        needed = {
            "the server's name (--server-name)": server.name,
            "the server's version (--server-version)": server.version,
            "the model (--model)": server.model,
            "the quantisation (--quantisation)": server.quantisation,
            "the server's flags (--server-flags, or --serve)": server.flags,
            "the git revision (run it from a checkout, or --git-revision)": self.provenance.git_revision,
            "the hardware": self.provenance.hardware.cpu,
            "the workload's hash": self.workload.sha256,
        }
        return [
            name for name, value in needed.items() if value is None or (isinstance(value, str) and not value.strip())
        ]


class _Named(msgspec.Struct, frozen=True):
    schema: str | None = None


def write_record(record: RunRecord, folder: Path) -> Path:
    """Write ``record.json``; returns its path. Raises BenchError."""
    made_folder(folder)
    return write_whole(folder / RECORD_FILE, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path) -> RunRecord:
    """Of a result folder or its ``record.json``. Raises CompareError."""
    file = path / RECORD_FILE if path.is_dir() else path
    try:
        raw = file.read_bytes()
        schema = msgspec.json.decode(raw, type=_Named).schema
        if schema != SCHEMA:
            raise CompareError(
                f"{file} is of the schema {schema!r}, not {SCHEMA}", remedy="measure it again with this version"
            )
        return msgspec.json.decode(raw, type=RunRecord)
    except OSError as error:
        raise CompareError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CompareError(f"{file} is not a record of a run: {error}") from None


def record_schema() -> dict[str, Any]:
    """The JSON schema of ``record.json``."""
    return msgspec.json.schema(RunRecord)
