"""Exports and imports between their wire form and values, both ways."""

from __future__ import annotations

from ...sessions.manager.requests import ExportRequest, Imported, ImportSession
from . import session_pb2 as pb
from .views import read_session, write_session


def read_export(message: pb.ExportRequest, tenant: str) -> ExportRequest:
    return ExportRequest(
        session_id=message.session_id,
        tenant=tenant,
        expected_version=message.expected_version if message.HasField("expected_version") else None,
        without_kv=message.without_kv,
    )


def write_export(request: ExportRequest) -> pb.ExportRequest:
    return pb.ExportRequest(
        session_id=request.session_id,
        tenant=request.tenant,
        expected_version=request.expected_version,
        without_kv=request.without_kv,
    )


def read_import(header: pb.ImportHeader, tenant: str) -> ImportSession:
    return ImportSession(tenant=tenant, request_id=header.request_id or None, without_kv=header.without_kv)


def write_import(request: ImportSession) -> pb.ImportHeader:
    return pb.ImportHeader(tenant=request.tenant, request_id=request.request_id or "", without_kv=request.without_kv)


def write_imported(imported: Imported) -> pb.ImportResponse:
    return pb.ImportResponse(
        session=write_session(imported.session), kv_tokens=imported.kv_tokens, kv_refused=imported.kv_refused
    )


def read_imported(message: pb.ImportResponse) -> Imported:
    return Imported(session=read_session(message.session), kv_tokens=message.kv_tokens, kv_refused=message.kv_refused)
