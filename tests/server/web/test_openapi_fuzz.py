"""schemathesis over the OpenAPI document: no answer is a 500, and every answer is one that the document describes.

``make test`` runs a few cases of each operation; ``SESSILE_SCHEMATHESIS_CASES=2000`` as many in all, or more.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from web_bench import WebBench

CASES = int(os.environ.get("SESSILE_SCHEMATHESIS_CASES", "90"))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
ENDLESS = "/events$"  # watches, which answer until their client goes away
COMMAND = Path(sys.executable).with_name("schemathesis")


IDS = 3  # of each kind, so that some are left when one was deleted


async def made(web: WebBench) -> dict[str, list[str]]:
    """Things that exist, by the name that paths give their ids."""
    found: dict[str, list[str]] = {}
    async with web.client() as http:
        for _ in range(IDS):
            session = (await http.post("/v1/sessions")).json()["session_id"]
            await http.post(f"/v1/sessions/{session}/generate", json={"text": "hi"})
            response = (await http.post("/v1/responses", json={"input": "hi"})).json()["id"]
            upload = {"data": {"purpose": "batch"}, "files": {"file": b"{}"}}
            file = (await http.post("/v1/files", **upload)).json()["id"]  # type: ignore[arg-type]
            wanted = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
            batch = (await http.post("/v1/batches", json=wanted)).json()["id"]
            ids = (("session_id", session), ("conversation_id", session), ("response_id", response))
            for name, value in (*ids, ("file_id", file), ("batch_id", batch), ("name", "default")):
                found.setdefault(name, []).append(value)
    return found


def deepened(document: dict[str, Any], ids: dict[str, list[str]]) -> dict[str, Any]:
    """The document for a server where these ids exist: cases name them often, and never another model."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    known = {"enum": ids[parameter["name"]]}
                    parameter["schema"] = {"anyOf": [known, known, {"type": "string", "minLength": 1}]}
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "additionalProperties" in schema:
            properties.pop("model", None)
        for field, name in (("previous_response_id", "response_id"), ("input_file_id", "file_id")):
            if field in properties:
                properties[field] = {"enum": ids[name]}
    return document


async def checked(url: str, document: dict[str, Any], num_cases: int, folder: Path) -> tuple[int | None, str]:
    """What schemathesis ended with, and its report, of so many cases of each operation."""
    (folder / "openapi.json").write_text(json.dumps(document))
    checking = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "run", "openapi.json", "--url", url, "--checks", ",".join(CHECKS), "--no-color"),
        *("--phases", "fuzzing,stateful", "--max-examples", str(num_cases)),
        *("--exclude-path-regex", ENDLESS, "--request-timeout", "60", "--continue-on-failure"),
        *("--suppress-health-check", "all"),  # which are about the speed of this machine
        *(("--generation-deterministic",) if CASES < 1000 else ()),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await checking.communicate()
    return checking.returncode, output.decode()


async def test_no_case_is_a_server_error(tmp_path: Path) -> None:
    if not COMMAND.exists():
        pytest.skip("schemathesis is not installed")
    with WebBench(tmp_path / "data") as web:
        await web.start_batches()
        document = deepened(copy.deepcopy(web.app.openapi()), await made(web))
        operations = sum(len(operations) for operations in document["paths"].values())
        async with web.served() as url:
            status, report = await checked(url, document, math.ceil(1.1 * CASES / operations), tmp_path)
        await web.batches.aclose()
    print(report)  # pytest -s shows it
    assert status == 0, report[-20_000:]
    cases = re.search(r"(\d+) generated, (\d+) passed", report)
    assert cases is not None, report
    assert int(cases[1]) >= CASES, report
    tested = re.search(r"Tested: (\d+)", report)
    assert tested is not None
    assert int(tested[1]) == operations - 2  # all but the two watches
