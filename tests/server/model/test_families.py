"""Each family against transformers: tiny random models, float32, chunked and ragged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sessile.server.model.causal_lm import Precision
from sessile.server.model.registry import LoadedModel, load_model
from sessile.server.model.source import ModelSource

LARGEST_DIFFERENCE = 1e-4
SEQUENCE_LENGTHS = (70, 33, 1, 17)
SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500_000.0,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "head_dim": 16,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-bias": transformers.LlamaConfig(**SIZES, attention_bias=True),
    "llama-head-dim": transformers.LlamaConfig(**SIZES, head_dim=16),
    "llama3-rope": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "linear-rope": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    ),
    "yarn-rope": transformers.LlamaConfig(**SIZES, rope_parameters=YARN_ROPE),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**SIZES, sliding_window=80),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3-moe": transformers.Qwen3MoeConfig(**SIZES, **MOE),
    "qwen3-moe-mixed": transformers.Qwen3MoeConfig(**SIZES, **{**MOE, "norm_topk_prob": False}, decoder_sparse_step=2),
}


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


def save_random(config: Any, folder: Path, **options: Any) -> Any:
    """A transformers model with random weights (norms and biases too), saved to ``folder``."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (0.0 if name.endswith("bias") else 1.0))
    model.save_pretrained(folder, **options)
    return model


def sequences(vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in SEQUENCE_LENGTHS]


def load(source: ModelSource, dtype: str = "float32") -> LoadedModel:
    return load_model(source, device="cpu", dtype=dtype, progress=silent)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, folder_source: ModelSource, run: Any) -> None:
    oracle = save_random(CONFIGS[name], folder_source.path)
    loaded = load(folder_source)
    prompts = sequences(loaded.config.vocab_size)
    for chunk in (64, 7):
        for prompt, logits in zip(prompts, run(loaded.model, prompts, chunk), strict=True):
            with torch.no_grad():
                expected = oracle(torch.tensor([prompt])).logits[0]
            assert (logits - expected).abs().max() < LARGEST_DIFFERENCE
            assert expected.abs().max() > 1.0  # the comparison would mean little otherwise


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_bfloat16_stays_near_float32(name: str, folder_source: ModelSource, run: Any) -> None:
    save_random(CONFIGS[name], folder_source.path)
    exact, rounded = load(folder_source), load(folder_source, "bfloat16")
    prompts = sequences(exact.config.vocab_size)
    assert rounded.model.kv_layout(16).dtype == torch.bfloat16
    pairs = zip(run(exact.model, prompts, 16), run(rounded.model, prompts, 16), strict=True)
    errors = torch.cat([(wide - narrow).flatten() for wide, narrow in pairs])
    assert errors.square().mean().sqrt() < 0.2
    assert exact.fingerprint != rounded.fingerprint


def test_shards_load_like_one_file(tmp_path: Path, run: Any) -> None:
    from sessile.server.model.source import SourceKind

    whole, sharded = (ModelSource("tiny", tmp_path / name, SourceKind.FOLDER) for name in ("whole", "sharded"))
    save_random(CONFIGS["llama"], whole.path)
    save_random(CONFIGS["llama"], sharded.path, max_shard_size="60KB")
    assert len(list(sharded.path.glob("*.safetensors"))) > 2
    prompts = sequences(131)
    for one, other in zip(run(load(whole).model, prompts, 16), run(load(sharded).model, prompts, 16), strict=True):
        assert torch.equal(one, other)


def test_a_sliding_window_limits_the_context(folder_source: ModelSource) -> None:
    save_random(CONFIGS["mistral-window"], folder_source.path)
    assert load(folder_source).model.max_position == 80


def test_the_fingerprint_follows_the_weights(folder_source: ModelSource) -> None:
    save_random(CONFIGS["llama"], folder_source.path)
    before = load(folder_source).fingerprint
    assert load(folder_source).fingerprint == before
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder_source.path)
    with torch.no_grad():
        oracle.lm_head.weight[0, 0] += 1
    oracle.save_pretrained(folder_source.path)
    assert load(folder_source).fingerprint != before


def test_precision_is_an_enum_of_two() -> None:
    assert [str(precision) for precision in Precision] == ["bfloat16", "float32"]
