"""Makes the drafter that the configuration asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from ....sessions.errors import ConfigError
from ...model.causal_lm import CausalLM
from ...model.registry import load_model, resolve_model
from ...model.source import Progress
from ..engine_config import EngineConfig, Speculation
from ..kv_cache import KVCache
from ..model_runner import Runner
from .draft_model import DraftModelProposer
from .drafter import Drafter, NoDrafts
from .measure_cost import measure_step_cost
from .output_log import OutputLog
from .past_outputs import PastOutputs
from .proposal import Proposer
from .session_texts import SessionTexts
from .speculator import Speculator
from .step_cost import StepCost
from .suffix_proposer import NgramProposer, SuffixProposer
from .texts_then_model import TextsThenModel

_LOG_NAME = "past-outputs.log"
_LONGEST_OF_MODEL = 4
_LONGEST_ON_CPU = 15
_LONGEST_ON_GPU = 7  # the largest graph verifies eight rows of a sequence


def open_drafter(
    config: EngineConfig, fingerprint: str, draft_model: CausalLM | None, runner: Runner, kv_cache: KVCache
) -> Drafter:
    """The drafter for ``config``. ``fingerprint`` names the model, whose token ids are kept over restarts. The KV pool
    must be unused: steps are measured on its first blocks."""
    if config.speculation is Speculation.OFF:
        return NoDrafts()
    device = kv_cache.pool.device
    cost = StepCost(config.max_batch_tokens, measure_step_cost(runner, kv_cache, config.max_batch_tokens))
    outputs = None if config.speculation is Speculation.NGRAM else _outputs(config, fingerprint)
    texts = SessionTexts(config.speculation_memory_bytes // 2)
    proposer: Proposer = NgramProposer(texts) if outputs is None else SuffixProposer(texts, outputs)
    if draft_model is not None and config.speculation is Speculation.AUTO:
        pool_bytes = kv_cache.num_blocks * draft_model.kv_layout(config.block_size).block_bytes
        guesses = DraftModelProposer(draft_model, device, pool_bytes, config.block_size, _LONGEST_OF_MODEL)
        proposer = TextsThenModel(proposer, guesses, cost)
    longest = _LONGEST_ON_CPU if device.type == "cpu" else _LONGEST_ON_GPU
    return Speculator(proposer, cost, longest, outputs)


def open_draft_model(
    config: EngineConfig, vocab_size: int, device: torch.device, progress: Progress
) -> CausalLM | None:
    """The draft model that is configured, if any.

    Raises:
        ConfigError: it has another vocabulary than the served model, or nothing would ask it.
        ModelError: it cannot be read.
    """
    if not config.draft_model:
        return None
    if config.speculation is not Speculation.AUTO:
        raise ConfigError(
            f"engine.draft_model is set, and engine.speculation is {config.speculation.value}",
            field="engine.draft_model",
            remedy="a draft model is asked with speculation auto only",
        )
    source = resolve_model(config.draft_model, None, progress)
    loaded = load_model(source, device=device, dtype=config.dtype.value, progress=progress)
    if loaded.config.vocab_size != vocab_size:
        raise ConfigError(
            f"engine.draft_model has a vocabulary of {loaded.config.vocab_size} tokens, the served model one of "
            f"{vocab_size}",
            field="engine.draft_model",
            remedy="take a smaller model of the same family, with the same tokenizer",
        )
    return loaded.model


def _outputs(config: EngineConfig, fingerprint: str) -> PastOutputs:
    return PastOutputs(config.speculation_memory_bytes // 2, _log(config, fingerprint))


def _log(config: EngineConfig, fingerprint: str) -> OutputLog | None:
    if not config.speculation_path:
        return None
    model = hashlib.blake2b(fingerprint.encode(), digest_size=32).digest()
    return OutputLog(Path(config.speculation_path) / _LOG_NAME, model, config.speculation_memory_bytes // 2)
