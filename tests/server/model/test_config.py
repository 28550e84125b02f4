"""Configurations: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessile.server.model.config import Family, RopeKind
from sessile.server.model.hf_config import config_from_hf, read_json
from sessile.sessions.errors import ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def test_a_plain_llama() -> None:
    config = config_from_hf(LLAMA)
    assert (config.family, config.head_dim, config.rope.base) == (Family.LLAMA, 16, 10_000.0)
    assert not (config.qkv_bias or config.qk_norm or config.tie_word_embeddings)


def test_rope_as_older_and_newer_files_write_it() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128}
    older = config_from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling})
    newer = config_from_hf({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5}})
    assert older == newer
    assert older.rope.kind is RopeKind.LLAMA3
    assert config_from_hf({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}}).rope.kind is RopeKind.LINEAR


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"num_key_value_heads": 0}, "num_kv_heads"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": 0.0}, "rope"),
    ],
)
def test_what_cannot_be_computed_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelError) as caught:
        config_from_hf({**LLAMA, **change})
    assert caught.value.field == field


def test_windows_limit_the_context_only_where_they_are_used() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 100}
    assert config_from_hf({**qwen, "use_sliding_window": False}).max_position == 512
    assert config_from_hf({**qwen, "use_sliding_window": True}).max_position == 100
    mistral = {**LLAMA, "model_type": "mistral"}
    assert config_from_hf({**mistral, "sliding_window": 100}).max_position == 100
    assert config_from_hf({**mistral, "sliding_window": None}).max_position == 512


def test_experts() -> None:
    moe = {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [0],
    }
    config = config_from_hf(moe)
    assert config.moe is not None
    assert [config.is_moe_layer(layer) for layer in range(2)] == [False, True]
    with pytest.raises(ModelError, match="9 of 8"):
        config_from_hf({**moe, "num_experts_per_tok": 9})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": \xff}'])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_json(path)


def test_unknown_keys_are_ignored() -> None:
    assert config_from_hf(json.loads(json.dumps({**LLAMA, "torch_dtype": "bfloat16", "new": [1]}))).num_layers == 2
