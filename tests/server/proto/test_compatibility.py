"""Fields, methods and enum values are only ever added: what ``session.golden`` lists is there, as it was.

``make proto`` adds what is new to the list. What was released is never taken out of it.
"""

from __future__ import annotations

from pathlib import Path

from proto_surface import surface

GOLDEN = Path(__file__).with_name("session.golden")


def test_nothing_was_taken_away_or_changed() -> None:
    kept = GOLDEN.read_text().splitlines()
    gone = sorted(set(kept) - set(surface()))
    assert not gone, "clients of earlier versions rely on: " + "; ".join(gone)
    assert kept == sorted(kept)
    assert len(kept) == len(set(kept)) > 200


def test_a_list_knows_what_matters_on_the_wire() -> None:
    lines = surface()
    assert "Generate: GenerateRequest -> stream GenerateResponse" in lines
    assert "Import: stream ImportRequest -> ImportResponse" in lines
    assert "Session.session_id = 1: string" in lines
    assert "Session.tools = 10: repeated Tool" in lines
    assert "Session.system = 9: optional string" in lines
    assert "GenerateResponse.delta = 1: TextDelta in event" in lines
    assert "ROLE_TOOL = 5 of Role" in lines
