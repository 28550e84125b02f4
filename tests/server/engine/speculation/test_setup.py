"""A draft model as it is configured: a folder, from its file to the tokens that it guesses right."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_llama import make_tiny_llama

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import Dtype, EngineConfig, Speculation
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.speculation import setup
from sessile.server.model.registry import load_model, resolve_model
from sessile.server.model.source import unwatched
from sessile.sessions.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("draft") / "model"
    make_tiny_llama(path)
    return path


def a_config(folder: Path, **values) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype=Dtype.FLOAT32,
        kv_memory_bytes=2**22,
        host_memory_bytes=0,
        disk_quota_bytes=0,
        **values,
    )


def said(config: EngineConfig) -> tuple[list[int], EngineCore]:
    """What the engine of ``config`` says to one prompt."""
    loaded = load_model(resolve_model(config.model), device=CPU, dtype=config.dtype.value)
    draft_model = setup.open_draft_model(config, loaded.config.vocab_size, CPU, unwatched)
    drafter = partial(setup.open_drafter, config, loaded.fingerprint, draft_model)
    core = EngineCore(config, loaded.model, CPU, time.monotonic, loaded.fingerprint, drafter=drafter)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    core.submit(SubmitTurn(turn_id="turn", token_ids=list(range(5, 25)), sampling=sampling))
    tokens: list[int] = []
    while core.has_work:
        for output in core.step():
            tokens += output.token_ids
    return tokens, core


def test_a_configured_draft_model_guesses_and_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "measure_step_cost", lambda *_: {1: 1.0, 8: 1.0})  # rows are free, whatever runs beside
    plain, _ = said(a_config(folder, speculation=Speculation.OFF))
    tokens, core = said(a_config(folder, speculation=Speculation.AUTO, draft_model=str(folder)))
    assert tokens == plain
    drafts = {counters.source: counters for counters in core.stats().drafts}
    assert drafts["draft_model"].accepted > 0
    core.close()


def test_a_draft_model_that_nothing_would_ask_is_an_error(folder: Path) -> None:
    config = a_config(folder, speculation=Speculation.SUFFIX, draft_model=str(folder))
    with pytest.raises(ConfigError, match="speculation is suffix"):
        setup.open_draft_model(config, 64, CPU, unwatched)


def test_a_draft_model_of_another_vocabulary_is_an_error(folder: Path) -> None:
    config = a_config(folder, draft_model=str(folder))
    with pytest.raises(ConfigError, match="the served model one of 7") as caught:
        setup.open_draft_model(config, 7, CPU, unwatched)
    assert caught.value.field == "engine.draft_model"
