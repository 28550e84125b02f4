"""schemathesis over the OpenAPI document: no answer is a 500, and every answer is one that the document describes.

``make test`` runs a few cases of each operation; ``SESSILE_SCHEMATHESIS_CASES=2000`` as many in all, or more.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
from pathlib import Path

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


async def test_no_case_is_a_server_error(tmp_path: Path) -> None:
    if not COMMAND.exists():
        pytest.skip("schemathesis is not installed")
    web = WebBench(tmp_path / "data")
    web.start()
    await web.start_batches()
    operations = sum(len(operations) for operations in web.app.openapi()["paths"].values())
    async with web.served() as url:
        checking = await asyncio.create_subprocess_exec(
            *(str(COMMAND), "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS), "--no-color"),
            *("--phases", "fuzzing,stateful", "--max-examples", str(math.ceil(CASES / operations))),
            *("--exclude-path-regex", ENDLESS, "--request-timeout", "60", "--continue-on-failure"),
            *(("--generation-deterministic",) if CASES < 1000 else ()),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await checking.communicate()
    await web.batches.aclose()
    web.stop()
    report = output.decode()
    assert checking.returncode == 0, report[-20_000:]
    cases = re.search(r"(\d+) generated, (\d+) passed", report)
    assert cases is not None, report
    assert int(cases[1]) >= CASES, report
    tested = re.search(r"Tested: (\d+)", report)
    assert tested is not None
    assert int(tested[1]) == operations - 2  # all but the two watches
