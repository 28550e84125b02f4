"""Makes the drafter that the configuration asks for."""

from __future__ import annotations

from ..engine_config import EngineConfig, Speculation
from ..kv_cache import KVCache
from ..model_runner import Runner
from .drafter import Drafter, NoDrafts
from .measure_cost import measure_step_cost
from .past_outputs import PastOutputs
from .proposal import Proposer
from .session_texts import SessionTexts
from .speculator import Speculator
from .step_cost import StepCost
from .suffix_proposer import NgramProposer, SuffixProposer

_LONGEST_ON_CPU = 15
_LONGEST_ON_GPU = 7  # the largest graph verifies eight rows of a sequence


def open_drafter(config: EngineConfig, runner: Runner, kv_cache: KVCache) -> Drafter:
    """The drafter for ``config``. The KV pool must be unused: steps are measured on its first blocks."""
    if config.speculation is Speculation.OFF:
        return NoDrafts()
    measured = measure_step_cost(runner, kv_cache, config.max_batch_tokens)
    longest = _LONGEST_ON_CPU if kv_cache.pool.device.type == "cpu" else _LONGEST_ON_GPU
    return Speculator(_proposer(config), StepCost(config.max_batch_tokens, measured), longest)


def _proposer(config: EngineConfig) -> Proposer:
    texts = SessionTexts(config.speculation_memory_bytes // 2)
    if config.speculation is Speculation.NGRAM:
        return NgramProposer(texts)
    return SuffixProposer(texts, PastOutputs(config.speculation_memory_bytes // 2))
