"""The generated stubs are those of session.proto, and the proto keeps to the rules of buf's style."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from sessile.server.proto import events, keeping, policy, requests, responses, views
from sessile.server.proto import session_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "server" / "proto" / "session.proto"


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", "."),
            *(f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"),
            "sessile/server/proto/session.proto",
        ],
        cwd=ROOT / ".import-root",
        check=True,
    )
    for name in ("session_pb2.py", "session_pb2_grpc.py"):
        generated = (tmp_path / "sessile" / "server" / "proto" / name).read_text()
        assert generated == PROTO.with_name(name).read_text(), "run make proto"


def test_everything_is_documented() -> None:
    lines = PROTO.read_text().splitlines()
    for number, line in enumerate(lines):
        declares = re.match(r"\s*(message|enum|service|rpc|oneof)\b|\s*[\w. ]+ = \d+;", line)
        if declares and not line.startswith("syntax"):
            assert lines[number - 1].lstrip().startswith("//"), f"line {number + 1}: {line}"


def test_names_follow_the_style() -> None:
    service = pb.DESCRIPTOR.services_by_name["SessionService"]
    for method in service.methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        _check_message(message)
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        _check_enum(enum)


def _check_message(message: Descriptor) -> None:
    assert re.fullmatch(r"([A-Z][a-z0-9]*)+", message.name), message.full_name
    for field in message.fields:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", field.name), field.full_name
        assert field.number < 19_000, field.full_name
    for oneof in message.oneofs:
        assert re.fullmatch(r"_?[a-z][a-z0-9]*(_[a-z0-9]+)*", oneof.name), oneof.full_name
    assert not message.enum_types, f"{message.full_name}: enums stand at the top, where their names are checked"
    assert all(inner.GetOptions().map_entry for inner in message.nested_types), message.full_name


def test_the_file_follows_the_style() -> None:
    assert PROTO.read_text().count('\nsyntax = "proto3";') == 1
    assert re.fullmatch(r"sessile\.v[0-9]+", pb.DESCRIPTOR.package)
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert service.name.endswith("Service")
    used = [message.name for method in service.methods for message in (method.input_type, method.output_type)]
    assert len(used) == len(set(used)), "each method has messages of its own, so that it can grow alone"
    assert all(re.fullmatch(r"([A-Z][a-z0-9]*)+", method.name) for method in service.methods)
    lines = PROTO.read_text().splitlines()
    assert all(len(line) <= 120 and line == line.rstrip() and "\t" not in line for line in lines)


def _check_enum(enum: EnumDescriptor) -> None:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
    assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
    assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


def test_translations_know_every_enum_value() -> None:
    from sessile.server.engine.messages import Priority
    from sessile.sessions.keeping import Persistence
    from sessile.sessions.manager import HintVerdict, StopCause
    from sessile.sessions.messages import Role
    from sessile.sessions.session import SessionState

    assert set(requests._WIRE_ROLES) == set(Role)
    assert set(requests._WIRE_PRIORITIES) == set(Priority)
    assert set(views.WIRE_STATES) == set(SessionState)
    assert set(responses._WIRE_CAUSES) == set(StopCause)
    assert set(policy.WIRE_PERSISTENCE) == set(Persistence)
    assert set(keeping.WIRE_VERDICTS) == set(HintVerdict)
    for enum, wired in (
        (pb.Persistence, policy.PERSISTENCE),
        (pb.HintOutcome, keeping.VERDICTS),
        (pb.Tier, events.TIERS),
    ):
        assert set(enum.values()) - {0} == set(wired)
    for enum, wired in ((pb.Role, requests._ROLES), (pb.StopCause, responses._CAUSES)):
        assert set(enum.values()) - {0} == set(wired)
