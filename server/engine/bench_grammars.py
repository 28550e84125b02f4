"""Measures what a grammar costs while decoding: ``python -m sessile.server.engine.bench_grammars [MODEL]``.

The same turns with a JSON schema and without one, one after the other, on the real model and in this process. Each line
is the fastest of several rounds; a round is one batch from its first token to its last.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import torch

from ...kernels.backend import prepare
from ..model.registry import load_model, resolve_model
from ..text.grammar_vocabulary import GrammarVocabulary
from ..text.guidance import guidance_tokenizer
from ..text.tokenizer_files import load_tokenizer
from .core import EngineCore
from .engine_config import EngineConfig
from .grammar import Grammar, GrammarKind
from .messages import SubmitTurn
from .sampling_params import SamplingParams

TOKENS = 128
ROUNDS = 5
PROMPT = "A list of customers and their orders, as JSON."
ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "items": {"type": "array", "items": {"type": "number"}, "maxItems": 5},
    },
    "required": ["name", "status", "items"],
    "additionalProperties": False,
}
ORDERS = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "array", "items": ORDER, "minItems": 500}))


def open_engine(model_name: str | None) -> tuple[EngineCore, list[int]]:
    """An engine on the CPU without lower tiers and without speculation, and the prompt's tokens."""
    source = resolve_model(model_name, None, lambda stage, fraction: None)
    device = torch.device("cpu")
    prepare(device.type, lambda stage, fraction: None)
    model = load_model(source, device=device, dtype="bfloat16", progress=lambda stage, fraction: None)
    tokenizer = load_tokenizer(source)
    vocabulary = partial(GrammarVocabulary.of, tokenizer, model.config.vocab_size)
    torch.set_num_threads(1)
    core = EngineCore(
        EngineConfig(),
        model.model,
        device,
        time.monotonic,
        vocabulary=lambda: guidance_tokenizer(vocabulary(), tokenizer.encode_inside),
    )
    return core, tokenizer.encode(PROMPT, allow_special=False)


def milliseconds_a_token(
    core: EngineCore, prompt: list[int], batch: int, grammar: Grammar | None, round_: int
) -> float:
    """Of a turn in a batch; forced tokens count, as they do for a client."""
    for number in range(batch):
        sampling = SamplingParams(seed=round_ * 100 + number, max_tokens=TOKENS, ignore_eos=True, grammar=grammar)
        core.submit(SubmitTurn(turn_id=str(number), token_ids=prompt, sampling=sampling))
    tokens, started = 0, 0.0
    while core.has_work:
        outputs = core.step()
        if started:
            tokens += sum(len(output.token_ids) for output in outputs)
        elif len(outputs) == batch:  # all have begun
            started = time.perf_counter()
    return (time.perf_counter() - started) / tokens * batch * 1e3


def main() -> None:
    """Print a line for each batch size."""
    core, prompt = open_engine(sys.argv[1] if len(sys.argv) > 1 else None)
    sys.stdout.write("batch   off ms/token   JSON schema ms/token   ratio\n")
    for batch in (1, 4, 16):
        off, on = [], []
        for round_ in range(ROUNDS):
            off.append(milliseconds_a_token(core, prompt, batch, None, round_))
            on.append(milliseconds_a_token(core, prompt, batch, ORDERS, round_))
        sys.stdout.write(f"{batch:5} {min(off):14.2f} {min(on):22.2f} {min(on) / min(off):7.2f}\n")
    core.close()


if __name__ == "__main__":
    main()
