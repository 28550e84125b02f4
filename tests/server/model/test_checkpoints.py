"""Checkpoints that are not what their configuration says, and sources that do not exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sessile.server.model.hf_config import config_from_hf
from sessile.server.model.registry import load_model
from sessile.server.model.source import ModelSource, SourceKind, resolve_model
from sessile.server.model.weights.tensor_source import expected_shapes
from sessile.sessions.errors import ModelError

CONFIG = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
Tensors = dict[str, torch.Tensor]


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def tensors() -> Tensors:
    return {name: torch.zeros(shape) for name, shape in expected_shapes(config_from_hf(CONFIG)).items()}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Tensors], None]:
    def load(tensors: Tensors) -> None:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        save_file(tensors, tmp_path / "model.safetensors")
        source = ModelSource("tiny", tmp_path, SourceKind.FOLDER)
        load_model(source, device="cpu", dtype="float32", progress=silent)

    return load


NAME = "model.layers.0.mlp.up_proj.weight"


def test_a_missing_tensor_is_named(tensors: Tensors, load: Callable[[Tensors], None]) -> None:
    del tensors[NAME]
    with pytest.raises(ModelError, match="no tensor") as caught:
        load(tensors)
    assert caught.value.field == NAME


def test_a_surplus_tensor_is_named(tensors: Tensors, load: Callable[[Tensors], None]) -> None:
    with pytest.raises(ModelError, match="no part of the model") as caught:
        load({**tensors, "model.layers.1.mlp.up_proj.weight": torch.zeros(48, 32)})
    assert caught.value.field == "model.layers.1.mlp.up_proj.weight"


def test_a_misshapen_tensor_is_named_with_both_shapes(tensors: Tensors, load: Callable[[Tensors], None]) -> None:
    with pytest.raises(ModelError, match=r"\(32, 48\).*\(48, 32\)") as caught:
        load({**tensors, NAME: torch.zeros(32, 48)})
    assert caught.value.field == NAME


def test_integers_are_no_weights(tensors: Tensors, load: Callable[[Tensors], None]) -> None:
    with pytest.raises(ModelError, match="stored as I8") as caught:
        load({**tensors, NAME: torch.zeros(48, 32, dtype=torch.int8)})
    assert caught.value.field == NAME


def test_derived_tensors_may_be_there(tensors: Tensors, load: Callable[[Tensors], None]) -> None:
    load({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.99])
def test_a_truncated_file_is_named(
    tmp_path: Path, tensors: Tensors, load: Callable[[Tensors], None], keep: float
) -> None:
    load(tensors)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load_model(ModelSource("t", tmp_path, SourceKind.FOLDER), device="cpu", dtype="float32", progress=silent)


def index(folder: Path, file: str) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NAME: file}}))


@pytest.mark.parametrize(("file", "message"), [("lost.safetensors", "lacks lost"), ("../x.safetensors", "no file of")])
def test_an_index_names_only_files_that_are_there(tmp_path: Path, file: str, message: str) -> None:
    index(tmp_path, file)
    with pytest.raises(ModelError, match=message):
        load_model(ModelSource("t", tmp_path, SourceKind.FOLDER), device="cpu", dtype="float32", progress=silent)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="never read") as caught:
        load_model(ModelSource("t", tmp_path, SourceKind.FOLDER), device="cpu", dtype="float32", progress=silent)
    assert caught.value.remedy is not None


def test_an_unknown_dtype_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="float16") as caught:
        load_model(ModelSource("t", tmp_path, SourceKind.FOLDER), device="cpu", dtype="float16", progress=silent)
    assert caught.value.field == "dtype"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at all", "no such model", "a/b/c", ""])
def test_no_such_model(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model(name, None, silent)
    assert caught.value.field == "model"


def test_a_folder_without_config_and_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    for path, message in ((tmp_path, "no config"), (other, "not a GGUF")):
        with pytest.raises(ModelError, match=message):
            resolve_model(str(path), None, silent)


def test_a_hub_id_without_network_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="cannot be") as caught:
        resolve_model("nobody/nothing-at-all", None, silent)
    assert caught.value.remedy is not None
