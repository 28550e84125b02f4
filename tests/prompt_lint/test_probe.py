"""The template probe: what a template does to a growing conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessile.prompt_lint.cli import main
from sessile.prompt_lint.errors import UnusableInput
from sessile.prompt_lint.probe import probe_template

HEAD = "{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}"
END = "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"

TEMPLATES: dict[str, tuple[str, set[str]]] = {
    "append only": (HEAD + END, set()),
    "clock": ("{{ strftime_now('%d %b %Y') }}\n" + HEAD + END, {"PL109"}),
    "old reasoning dropped": (
        "{%- set ns = namespace(u=-1) -%}"
        "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.u = loop.index0 -%}{%- endif -%}{%- endfor -%}"
        "{%- for m in messages -%}<|{{ m.role }}|>"
        "{%- if m.reasoning_content and loop.index0 > ns.u -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}"
        "{{ m.content }}<|end|>{%- endfor -%}" + END,
        {"PL701"},
    ),
    "empty thought in the generation prompt": (
        HEAD + END.replace("<|assistant|>", "<|assistant|><think></think>"),
        {"PL702"},
    ),
    "tools beside the last message": (
        "{%- for m in messages -%}{%- if loop.last and tools -%}<tools>{{ tools | tojson }}</tools>{%- endif -%}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}" + END,
        {"PL703"},
    ),
    "two start tokens": ("{{ bos_token }}{{ bos_token }}" + HEAD + END, {"PL705"}),
    "refuses tools": ("{%- if tools -%}{{ raise_exception('no tools') }}{%- endif -%}" + HEAD + END, set()),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_template(name: str, tmp_path: Path) -> None:
    source, rules = TEMPLATES[name]
    path = tmp_path / "chat_template.jinja"
    path.write_text(source)
    assert {f.rule for f in probe_template(path)} == rules


def test_tokenizer_config_and_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATES["clock"][0]}))
    assert [f.rule for f in probe_template(tmp_path)] == ["PL109"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ raise_exception('never') }}",
        "",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 1 // 0 }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% include 'x' %}",
        "{{ messages.nothing.at_all }}",
        "(" * 5000 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_unusable_templates(source: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(source)
    with pytest.raises(UnusableInput):
        probe_template(path)


def test_what_is_marked_for_training_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert probe_template(path) == []


def test_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UnusableInput):
        probe_template(path)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATES["clock"][0])
    assert main(["probe-template", str(path), "--output-format", "concise"]) == 1
    assert "PL109" in capsys.readouterr().out
    path.write_text(TEMPLATES["append only"][0])
    assert main(["probe-template", str(path)]) == 0


def test_a_hub_id_is_looked_for_on_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["probe-template", "acme/desk-7b"]) == 2
    said = capsys.readouterr().err
    assert "no model of this name" in said
    assert "give its chat_template.jinja or tokenizer_config.json" in said
    folder = tmp_path / "models--acme--desk-7b" / "snapshots" / "9f86d0"
    folder.mkdir(parents=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": HEAD + END}))
    assert main(["probe-template", "acme/desk-7b"]) == 0


def test_the_embedded_models_folder_has_a_template(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text(json.dumps({"eos_token_ids": [2], "chat_template": HEAD + END}))
    assert main(["probe-template", str(tmp_path)]) == 0
