"""What turns said: bounded, kept over restarts, apart by tenant and tools; a damaged file is an empty one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.speculation.output_log import OutputLog, Said
from sessile.server.engine.speculation.past_outputs import PastOutputs

MODEL = b"m" * 32
MIB = 2**20


def words(seed: int, count: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, count, dtype=np.int32)


def found(outputs: PastOutputs, salt: str, schema: str, said: np.ndarray) -> list[int]:
    """What followed the first ten tokens of ``said``."""
    text = outputs.of(salt, schema)
    places = [] if text is None else text.find(said[:10].copy().data, 10)
    return text.following(places[0].at, 100) if text is not None and places else []


def opened(path: Path, most_bytes: int = MIB, model: bytes = MODEL) -> PastOutputs:
    return PastOutputs(most_bytes, OutputLog(path, model, most_bytes))


def test_tenants_and_tools_are_apart() -> None:
    outputs = PastOutputs(MIB)
    outputs.add("one", "tools", words(1))
    assert found(outputs, "one", "tools", words(1)) == words(1)[10:].tolist()
    for salt, schema in (("two", "tools"), ("one", "others"), ("", "")):
        assert found(outputs, salt, schema, words(1)) == []


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    outputs = opened(path)
    for seed in range(5):
        outputs.add("salt", "", words(seed))
    outputs.add_for_now("salt", "", words(99))
    del outputs  # not closed: the process was killed
    again = opened(path)
    for seed in range(5):
        assert found(again, "salt", "", words(seed)) == words(seed)[10:].tolist()
    assert found(again, "salt", "", words(99)) == [], "it was to leave nothing behind"
    again.add("salt", "", words(7))
    again.close()
    assert found(opened(path), "salt", "", words(7)) == words(7)[10:].tolist()


def test_another_models_file_is_replaced(tmp_path: Path) -> None:
    opened(tmp_path / "log").add("salt", "", words(1))
    other = opened(tmp_path / "log", model=b"x" * 32)
    assert other.num_tokens == 0 and other.num_damaged_files == 0
    other.add("salt", "", words(2))
    assert opened(tmp_path / "log", model=b"x" * 32).num_tokens == 51
    assert opened(tmp_path / "log").num_tokens == 0


def test_memory_and_file_are_bounded(tmp_path: Path) -> None:
    most = 64 * 1024
    outputs = opened(tmp_path / "log", most)
    for seed in range(400):
        outputs.add(f"salt {seed % 3}", "", words(seed, 100))
        assert outputs.num_bytes <= 1.2 * most
        assert (tmp_path / "log").stat().st_size <= most + 1000
    assert found(outputs, "salt 0", "", words(399, 100)) == words(399, 100)[10:].tolist(), "the latest are kept"
    assert found(outputs, "salt 0", "", words(0, 100)) == []
    assert opened(tmp_path / "log", most).num_tokens > 0


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 900))
def test_a_file_that_is_cut_off_loses_its_end_only(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = OutputLog(path, MODEL, MIB)
    log.read()
    for seed in range(4):
        log.append(Said("salt", "", words(seed).tobytes()))
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    again = OutputLog(path, MODEL, MIB)
    said = [each.token_ids.tolist() for each in again.read()]
    assert said == [words(seed).tolist() for seed in range(len(said))]
    assert again.num_damaged == (0 < len(content) - cut < 8), "half a magic is no magic"
    again.append(Said("salt", "", words(9).tobytes()))
    assert [each.token_ids.tolist() for each in OutputLog(path, MODEL, MIB).read()] == [*said, words(9).tolist()]


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 400), bit=st.integers(0, 7))
def test_a_flipped_bit_makes_it_start_anew_and_is_counted(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = OutputLog(path, MODEL, MIB)
    log.read()
    for seed in range(2):
        log.append(Said("salt", "", words(seed).tobytes()))
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))
    again = OutputLog(path, MODEL, MIB)
    good = [words(seed).tolist() for seed in range(2)]
    said = [each.token_ids.tolist() for each in again.read()]
    assert said in ([], good[:1]), "nothing else than what was written; a length that grew looks like a file cut off"
    again.append(Said("salt", "", words(5).tobytes()))
    assert [each.token_ids.tolist() for each in OutputLog(path, MODEL, MIB).read()] == [*said, words(5).tolist()]


def test_a_folder_that_cannot_be_written_costs_nothing_but_memory_over_restarts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outputs = opened(tmp_path / "file" / "log")
    outputs.add("salt", "", words(1))
    assert found(outputs, "salt", "", words(1)) == words(1)[10:].tolist()
    outputs.close()
