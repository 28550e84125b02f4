"""Files of models: GGUF, safetensors, configurations, tokenizers, chat templates."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import json_changes
import numpy as np
import safetensors.torch
import torch
from byte_text import IM_END, write_byte_tokenizer
from fuzzing import Feed, Target

from sessile.server.model.gguf_config import config_from_gguf
from sessile.server.model.hf_config import config_from_hf, read_json
from sessile.server.model.source import ModelSource, SourceKind
from sessile.server.model.weights.gguf_file import GGUFFile
from sessile.server.model.weights.safetensors_source import SafetensorsSource, weight_files
from sessile.server.text.chat_template import CHATML, ChatTemplate, LogEnd, TemplateTokens
from sessile.server.text.gguf_tokenizer import tokenizer_from_gguf
from sessile.server.text.tokenizer import Tokenizer
from sessile.server.text.tokenizer_files import load_chat_template, load_tokenizer
from sessile.sessions.errors import ModelError, RequestError

TEXT = "How are you?\n<|im_end|> 123 é🙂"


@contextlib.contextmanager
def _file(feed_path: Any) -> Iterator[Feed]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"

        def feed(content: bytes) -> None:
            path.write_bytes(content)
            feed_path(path)

        yield feed


# -- GGUF -------------------------------------------------------------------------------------------------------------


def _gguf(path: Path) -> None:
    file = GGUFFile(path)
    for name in file.tensors:
        file.raw(name)
    with contextlib.suppress(ModelError):  # the tokenizer is read whatever the configuration is
        config_from_gguf(file)
    backend, special, _ = tokenizer_from_gguf(file.metadata)
    tokenizer = Tokenizer(backend, special)
    tokenizer.decode(tokenizer.encode(TEXT, allow_special=True), skip_special=False)


def _gguf_seeds() -> list[bytes]:
    return [_gguf_file("llama", "gpt2"), _gguf_file("qwen3moe", "llama")]


def _gguf_file(architecture: str, tokenizer: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(str(path), architecture)
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10_000.0)
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list(["<unk>", "a", "b", "ab", IM_END, "<0x41>", "▁"])
        writer.add_token_types([2, 1, 1, 1, 3, 6, 1])
        writer.add_token_scores([0.0, -1.0, -2.0, -3.0, 0.0, 0.0, -4.0])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(4)
        writer.add_chat_template(CHATML)
        writer.add_tensor("token_embd.weight", np.zeros((7, 32), np.float32))
        writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


GGUF_WORDS = (b"GGUF", b"tokenizer.ggml.", b"general.alignment", *(code.to_bytes(4, "little") for code in range(16)))


# -- safetensors ------------------------------------------------------------------------------------------------------


def _safetensors(path: Path) -> None:
    source = SafetensorsSource([path])
    for name in source.shapes:
        source.tensor(name)


def _safetensors_seeds() -> list[bytes]:
    tensors = {"a": torch.zeros(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}
    return [safetensors.torch.save(tensors), safetensors.torch.save({"x": torch.zeros(0)}, {"format": "pt"})]


def _index(path: Path) -> None:
    index = path.with_name("model.safetensors.index.json")
    index.write_bytes(path.read_bytes())
    (path.parent / "a.safetensors").touch()
    weight_files(path.parent)


# -- configurations and tokenizers ------------------------------------------------------------------------------------


def _config(path: Path) -> None:
    config_from_hf(read_json(path))


def _config_seeds() -> list[bytes]:
    plain = {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
    }  # fmt: skip
    moe = {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "mlp_only_layers": [0], "decoder_sparse_step": 1, "sliding_window": 64, "use_sliding_window": True,
    }  # fmt: skip
    return [json.dumps(plain).encode(), json.dumps({**plain, **moe}).encode()]


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "config.json",
)


@contextlib.contextmanager
def _tokenizer_folder() -> Iterator[Feed]:
    """The first byte says which file the rest stands in for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_byte_tokenizer(folder)
        good = {file: (folder / file).read_bytes() for file in _FILES if (folder / file).exists()}

        def feed(content: bytes) -> None:
            file = _FILES[content[0] % len(_FILES)] if content else _FILES[0]
            (folder / file).write_bytes(content[1:])
            try:
                source = ModelSource("m", folder, SourceKind.FOLDER)
                tokenizer = load_tokenizer(source)
                template = load_chat_template(source, tokenizer)
                tokenizer.encode_prompt(template.render([{"role": "user", "content": TEXT}]))
            finally:
                (folder / file).unlink()
                if file in good:
                    (folder / file).write_bytes(good[file])

        yield feed


def _tokenizer_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        write_byte_tokenizer(Path(name))
        whole = (Path(name) / "tokenizer.json").read_bytes()
    config = {
        "eos_token": {"content": IM_END, "lstrip": False}, "bos_token": "<|im_start|>",
        "chat_template": [{"name": "tool_use", "template": CHATML}, {"name": "default", "template": "x"}],
    }  # fmt: skip
    return [
        b"\0" + whole,
        b"\1" + json.dumps(config).encode(),
        b"\2" + json.dumps({"eos_token": IM_END}).encode(),
        b"\3" + json.dumps({"eos_token_id": [4, 5]}).encode(),
        b"\4" + json.dumps({"chat_template": CHATML}).encode(),
        b"\5" + CHATML.encode(),
        b"\6" + json.dumps({"eos_token_id": 7}).encode(),
    ]


def _change_file(content: bytes, rng: Any) -> bytes:
    return content[:1] + json_changes.changed(content[1:], rng)


# -- chat templates ---------------------------------------------------------------------------------------------------

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": "hi <|im_end|>"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1, None]}}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "42"},
]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@contextlib.contextmanager
def _templates() -> Iterator[Feed]:
    tokens = TemplateTokens({"bos_token": "<s>"}, ("<|im_start|>", IM_END), (IM_END,))

    def feed(content: bytes) -> None:
        template = ChatTemplate(content.decode("utf-8", "replace"), tokens)
        template.render(CONVERSATION, TOOLS)
        template.render_continuation(CONVERSATION[:2], CONVERSATION[2:], TOOLS, log_end=LogEnd.RENDERED)

    yield feed


def _template_seeds() -> list[bytes]:
    return [
        CHATML.encode(),
        b"{{ bos_token }}{% for m in messages %}{% if m['role'] == 'tool' %}[TOOL]{{ m.content | tojson }}{% elif "
        b"m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson(indent=2) }}"
        b"{% endfor %}{% else %}{{ m['content'] | trim }}{% endif %}{% endfor %}",
        b"{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{% set ns = namespace(n=0, l=[]) %}{% for i in range(9) %}"
        b"{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{{ f(i) }}{{ loop.index }}{% if loop.last %}{% break %}"
        b"{% endif %}{% endfor %}{{ ns.l | join(',') }}{{ strftime_now('%d %b %Y') }}",
        b"{% if messages[0].role not in ('user', 'system') %}{{ raise_exception('no') }}{% endif %}{{ messages[-1]"
        b".content.split('<')[0].strip().upper() }}{% generation %}x{% endgeneration %}{{ tools | length }}",
        b"{{ messages | map(attribute='content') | select('string') | list | join('\n') | indent(4) | replace('a', 'b')"
        b" }}{{ '%s-%d' % ('a', 3) }}{{ 'x'.format(1) }}{{ dict(a=1).items() | list }}{{ messages | groupby('role') }}",
    ]


TEMPLATE_WORDS = tuple(
    word.encode()
    for word in (
        "{% for x in messages %}", "{% endfor %}", "{{ x }}", "{% if x %}", "{% endif %}", "{% set x = messages %}",
        "{% macro f() %}", "{% endmacro %}", "f()", " * 99999999", " ** 9999", "range(99999)", " | list",
        " | join('a')", " | tojson", ".__class__", "['__init__']", "|attr('__globals__')", ".format(x)",
        "namespace(a=1)", "cycler(1)",
        "%}", "{%", "}}", "{{", "{#", "loop.cycle(1)", " ~ x", "%99d' % 1", "'a' * 999999", "messages.append(1)",
        "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% block a %}{% endblock %}", "self.a()",
        "{% call f() %}{% endcall %}", "{% filter upper %}{% endfilter %}", "caller()", "varargs", "strftime_now('%Y')",
        "| map('upper')", "| sort", "| sum", "| groupby('a')", "| batch(2)", "[::-1]", "[999:]", "{%- ", " -%}",
    )
)  # fmt: skip

TARGETS = (
    Target("gguf", lambda: _file(_gguf), _gguf_seeds, (ModelError,), GGUF_WORDS),
    Target("safetensors", lambda: _file(_safetensors), _safetensors_seeds, (ModelError,), mutate=None),
    Target(
        "safetensors-index",
        lambda: _file(_index),
        lambda: [b'{"weight_map": {"a": "a.safetensors", "b": "a.safetensors"}}'],
        (ModelError,),
        mutate=json_changes.changed,
    ),
    Target("model-config", lambda: _file(_config), _config_seeds, (ModelError,), mutate=json_changes.changed),
    Target("tokenizer-files", _tokenizer_folder, _tokenizer_seeds, (ModelError, RequestError), mutate=_change_file),
    Target("chat-template", _templates, _template_seeds, (ModelError, RequestError), TEMPLATE_WORDS, most_bytes=4096),
)
