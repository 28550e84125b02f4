"""GGUF files: written by the `gguf` package's own writer, read here, compared with transformers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from sessile.server.model.gguf_config import config_from_gguf
from sessile.server.model.registry import load_model
from sessile.server.model.source import ModelSource, SourceKind
from sessile.server.model.weights.gguf_file import GGUFFile
from sessile.server.model.weights.gguf_source import GGUFSource
from sessile.sessions.errors import ModelError

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.08,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
QUANTISED = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ2_0]
# K-quants have no writer in the package: their bytes are made by hand, see `random_blocks`.
K_QUANTS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


def random_blocks(shape: tuple[int, ...], kind: Type) -> np.ndarray:
    """Bytes of a K-quantised tensor whose scales are small numbers and whose other bits are random."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(5)
    count = int(np.prod(shape)) // block
    blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
    half = generator.uniform(1e-5, 6e-5, count).astype(np.float16).view(np.uint8).reshape(count, 2)
    places = {Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}
    for place in places.get(kind, (0,)):
        blocks[:, place : place + 2] = half
    return blocks.reshape(*shape[:-1], -1)


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as converters of the Llama family write q and k: the two halves of a rotary pair side by side."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


class Checkpoint:
    """A transformers model and the GGUF file that was written of it."""

    def __init__(self, path: Path, config: Any, kind: Type, architecture: str) -> None:
        torch.manual_seed(11)
        self.oracle = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.path, self.kind, self.architecture = path, kind, architecture
        self._config = config
        with torch.no_grad():
            for name, parameter in self.oracle.named_parameters():
                if parameter.dim() == 1:
                    parameter.copy_(torch.randn_like(parameter) * 0.3 + (0.0 if name.endswith("bias") else 1.0))

    def write(self, metadata: Callable[[gguf.GGUFWriter], None] | None = None) -> None:
        """Write the file, and put what it holds after quantisation back into the oracle."""
        writer = gguf.GGUFWriter(str(self.path), self.architecture)
        config = self._config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10_000.0)
        if getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        if metadata is not None:
            metadata(writer)
        state = self.oracle.state_dict()
        for name, tensor in state.items():
            self._add(writer, name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _add(self, writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
        if name == "lm_head.weight" and self._config.tie_word_embeddings:
            return
        values = tensor.detach().numpy().copy()
        if name.endswith("experts.gate_up_proj"):  # [experts, 2 * intermediate, hidden]
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                writer.add_tensor(f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", np.ascontiguousarray(half))
            return
        if name.endswith("experts.down_proj"):
            writer.add_tensor(f"blk.{name.split('.')[2]}.ffn_down_exps.weight", values)
            return
        kind = Type.F32 if values.ndim == 1 else self.kind
        stored = random_blocks(values.shape, kind) if kind in K_QUANTS else gguf.quants.quantize(values, kind)
        tensor.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind).reshape(values.shape).copy()))
        writer.add_tensor(self._gguf_name(name), self._permuted(stored, name), raw_dtype=kind)

    def _permuted(self, stored: np.ndarray, name: str) -> np.ndarray:
        if self.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            config = self._config
            return permuted(stored, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        return stored

    def _gguf_name(self, name: str) -> str:
        stem, _, ending = name.rpartition(".")
        if stem in TOP:
            return f"{TOP[stem]}.{ending}"
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{ending}"

    def load(self, dtype: str = "float32") -> Any:
        source = ModelSource("tiny", self.path, SourceKind.GGUF)
        return load_model(source, device="cpu", dtype=dtype, progress=silent).model

    def expected(self, token_ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.oracle(torch.tensor([token_ids])).logits[0]
        return logits


TOKEN_IDS = [(7 * i * i + 3) % 96 for i in range(40)]


@pytest.mark.parametrize("kind", QUANTISED + K_QUANTS, ids=lambda kind: kind.name)
def test_every_quantisation_equals_its_dequantised_model(tmp_path: Path, run: Any, kind: Type) -> None:
    checkpoint = Checkpoint(tmp_path / "m.gguf", transformers.LlamaConfig(**SIZES), kind, "llama")
    checkpoint.write()
    (logits,) = run(checkpoint.load(), [TOKEN_IDS], 16)
    expected = checkpoint.expected(TOKEN_IDS)
    assert (logits - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))


FAMILIES: dict[str, tuple[Any, str]] = {
    "llama-tied": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), "llama"),
    "llama-bias": (transformers.LlamaConfig(**SIZES, attention_bias=True), "llama"),
    "mistral": (transformers.MistralConfig(**SIZES, sliding_window=None), "llama"),
    "qwen2": (transformers.Qwen2Config(**SIZES), "qwen2"),
    "qwen3": (transformers.Qwen3Config(**SIZES, head_dim=64), "qwen3"),
    "qwen3-moe": (
        transformers.Qwen3MoeConfig(
            **SIZES,
            head_dim=32,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            norm_topk_prob=True,
        ),
        "qwen3moe",
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(tmp_path: Path, run: Any, name: str) -> None:
    config, architecture = FAMILIES[name]

    def metadata(writer: gguf.GGUFWriter) -> None:
        if architecture == "qwen3moe":
            writer.add_expert_count(4)
            writer.add_expert_used_count(2)
            writer.add_expert_feed_forward_length(64)

    checkpoint = Checkpoint(tmp_path / "m.gguf", config, Type.F32, architecture)
    checkpoint.write(metadata)
    (logits,) = run(checkpoint.load(), [TOKEN_IDS], 16)
    assert (logits - checkpoint.expected(TOKEN_IDS)).abs().max() < 1e-4


def test_llama3_rope_factors_are_read_from_their_tensor(tmp_path: Path, run: Any) -> None:
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10_000.0,
    }
    checkpoint = Checkpoint(
        tmp_path / "m.gguf", transformers.LlamaConfig(**SIZES, rope_parameters=rope), Type.F32, "llama"
    )
    plain = 1.0 / 10_000.0 ** (torch.arange(0, 32, 2).float() / 32)
    factors = (plain / checkpoint.oracle.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert factors.max() > 7.9
    checkpoint.write(lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    (logits,) = run(checkpoint.load(), [TOKEN_IDS], 16)
    assert (logits - checkpoint.expected(TOKEN_IDS)).abs().max() < 1e-4


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    Checkpoint(path, transformers.LlamaConfig(**SIZES), Type.Q4_0, "llama").write()
    return path.read_bytes()


def test_quantised_forms_are_kept_in_bfloat16_mode(tmp_path: Path) -> None:
    from sessile.kernels.linear import DenseWeight, Int4Weight, Int8Weight

    forms = {Type.Q4_0: Int4Weight, Type.Q4_1: Int4Weight, Type.Q8_0: Int8Weight, Type.Q5_0: DenseWeight}
    for kind, form in forms.items():
        path = tmp_path / f"{kind.name}.gguf"
        Checkpoint(path, transformers.LlamaConfig(**SIZES), kind, "llama").write()
        file = GGUFFile(path)
        weight = GGUFSource(file, config_from_gguf(file)).matrix("model.layers.0.self_attn.q_proj.weight")
        assert isinstance(weight, form)


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 200, 0.2, 0.5, 0.999])
def test_a_truncated_file_is_named(tmp_path: Path, tiny_file: bytes, keep: float) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_file[: keep if isinstance(keep, int) else int(len(tiny_file) * keep)])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        GGUFFile(path)


def test_flipped_header_bytes_never_crash(tmp_path: Path, tiny_file: bytes) -> None:
    generator = np.random.default_rng(1)
    path = tmp_path / "flipped.gguf"
    for _ in range(300):
        damaged = bytearray(tiny_file)
        for place in generator.integers(0, 2500, 3):
            damaged[place] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged)
        try:
            file = GGUFFile(path)
            config = config_from_gguf(file)
            assert GGUFSource(file, config).shapes
        except ModelError:
            continue


def header(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: str, code: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", code) + value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + bytes(40), "not a GGUF"),
        (header(version=1), "version 1"),
        (header(keys=1 << 60), "claims"),
        (header(keys=1) + key("a", 8, struct.pack("<Q", 1 << 62)), "damaged"),
        (header(keys=1) + key("a", 9, struct.pack("<IQ", 8, 1 << 55)), "longer than the file"),
        (header(keys=1) + key("a", 9, struct.pack("<IQ", 4, 1 << 62)), "longer than the file"),
        (header(keys=1) + key("a", 77, b""), "unknown type"),
        (header(keys=2) + key("a", 7, b"\x01") + key("a", 7, b"\x01"), "twice"),
        (header(keys=1) + key("general.alignment", 4, struct.pack("<I", 0)), "alignment"),
        (header(tensors=1) + struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 9, 1, 0, 0), "dimensions"),
        (header(tensors=1) + struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 1 << 50, 0, 0), "shape"),
        (header(tensors=1) + struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 8, 199, 0), "unknown type"),
        (header(tensors=1) + struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 8, 0, 1 << 40), "truncated"),
    ],
)
def test_hostile_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        GGUFFile(path)


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    checkpoint = Checkpoint(path, transformers.LlamaConfig(**SIZES), Type.F32, "llama")
    checkpoint.write(lambda writer: writer.add_tensor("blk.0.mystery.weight", np.ones(3, np.float32)))
    with pytest.raises(ModelError, match=r"blk\.0\.mystery\.weight") as caught:
        checkpoint.load()
    assert caught.value.field == "blk.0.mystery.weight"


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    Checkpoint(path, transformers.LlamaConfig(**SIZES), Type.F32, "gpt-neox").write()
    with pytest.raises(ModelError, match=r"gpt-neox.*known are llama"):
        config_from_gguf(GGUFFile(path))


def test_a_part_of_a_split_model_has_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    checkpoint = Checkpoint(path, transformers.LlamaConfig(**SIZES), Type.F32, "llama")
    checkpoint.write(lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(ModelError, match="one of 3 parts") as caught:
        config_from_gguf(GGUFFile(path))
    assert caught.value.remedy
