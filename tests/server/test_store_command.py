"""``sessile store`` on a folder that no server ever had."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile.server import app


@pytest.mark.parametrize("action", ["check", "copy", "copies", "restore"])
def test_a_wrong_folder_is_told_from_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    assert app.main(["store", action, "--data-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert f"there are neither sessions nor batches nor copies in {tmp_path}" in error
    assert "--data-dir" in error
    assert list(tmp_path.iterdir()) == []
