"""From a source file to findings."""

from __future__ import annotations

import enum
import re
import sys
from pathlib import PurePath

from ..errors import UnusableInput
from ..findings import Edit, Finding, Location
from ..rules.catalogue import CATALOGUE
from .edits import javascript_edits, python_edits
from .flow import Flow
from .javascript.parser import read_javascript
from .line_flow import GO, RUST, analyse_lines
from .python_ir import read_any_python
from .templates import analyse_jinja, analyse_prompt_file
from .verdicts import CodeHit


class Language(enum.Enum):
    """A kind of source."""

    PYTHON = "python"
    TYPESCRIPT = "typescript"
    GO = "go"
    RUST = "rust"
    JINJA = "jinja"
    PROMPT = "prompt"


_SUFFIXES = {
    ".py": Language.PYTHON,
    ".pyi": None,
    ".ts": Language.TYPESCRIPT,
    ".tsx": Language.TYPESCRIPT,
    ".mts": Language.TYPESCRIPT,
    ".cts": Language.TYPESCRIPT,
    ".js": Language.TYPESCRIPT,
    ".jsx": Language.TYPESCRIPT,
    ".mjs": Language.TYPESCRIPT,
    ".cjs": Language.TYPESCRIPT,
    ".go": Language.GO,
    ".rs": Language.RUST,
    ".jinja": Language.JINJA,
    ".jinja2": Language.JINJA,
    ".j2": Language.JINJA,
    ".prompt": Language.PROMPT,
    ".prompty": Language.PROMPT,
    ".hbs": Language.PROMPT,
    ".mustache": Language.PROMPT,
    ".liquid": Language.PROMPT,
}
_NOT_PROMPTS = {
    ".html",
    ".htm",
    ".xml",
    ".css",
    ".js",
    ".svg",
    ".yaml",
    ".yml",
    ".toml",
    ".sh",
    ".py",
    ".sql",
    ".conf",
    ".json",
}
_WORTH_READING = re.compile(
    r"[\"']role[\"']|\brole\s*[:=]|[sS]ystem|[iI]nstructions|tools\s*[=:]|messages|prompt_tokens|"
    r"input_tokens|apply_chat_template|prompt_cache_key|cache_salt|[\"']user[\"']|description"
)


def language_of(file: str) -> Language | None:
    """The language of a file by its name; prompt files are those in a folder named prompts."""
    path = PurePath(file)
    language = _SUFFIXES.get(path.suffix.lower())
    if language is Language.JINJA and PurePath(path.stem).suffix.lower() in _NOT_PROMPTS:
        return None
    if (
        language is None
        and path.suffix.lower() in (".txt", ".md")
        and any(part in ("prompts", "prompt") for part in path.parts[:-1])
    ):
        return Language.PROMPT
    return language


def analyse_source(file: str, text: str, language: Language) -> list[Finding]:
    """Findings of one source file.

    Raises: UnusableInput when it cannot be parsed, or is nested too deeply to be followed.
    """
    try:
        return [_finding(file, text, hit, language) for hit in hits_of(file, text, language)]
    except RecursionError as error:
        raise UnusableInput(file, "its expressions are nested too deeply to be followed") from error


def is_readable(file: str, text: str) -> bool:
    """False for a text that is no program of the file's language. Only Python is sure to be told apart."""
    if language_of(file) is not Language.PYTHON:
        return True
    try:
        read_any_python(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def hits_of(file: str, text: str, language: Language) -> list[CodeHit]:
    """Hits of one source file. Raises: UnusableInput when it cannot be parsed."""
    match language:
        case Language.PYTHON:
            return _python(file, text)
        case Language.TYPESCRIPT:
            return Flow(read_javascript(text), ordered_sets=True).run() if _WORTH_READING.search(text) else []
        case Language.GO:
            return analyse_lines(text, GO)
        case Language.RUST:
            return analyse_lines(text, RUST)
        case Language.JINJA:
            return analyse_jinja(text)
        case Language.PROMPT:
            return analyse_prompt_file(text)


def _python(file: str, text: str) -> list[CodeHit]:
    if not _WORTH_READING.search(text):
        return []
    try:
        module = read_any_python(text)
    except SyntaxError as error:
        reason = f"not Python {sys.version_info.major}.{sys.version_info.minor}: {error.msg}"
        raise UnusableInput(file, reason, error.lineno) from error
    except ValueError as error:
        raise UnusableInput(file, f"not Python: {error}") from error
    return Flow(module, ordered_sets=False).run()


def _finding(file: str, text: str, hit: CodeHit, language: Language) -> Finding:
    info = CATALOGUE[hit.rule]
    column = hit.node.start - (text.rfind("\n", 0, hit.node.start) + 1) + 1
    return Finding(
        rule=hit.rule,
        name=info.name,
        severity=hit.severity,
        message=hit.message,
        location=Location(file, line=hit.node.line, column=column),
        fix=info.fix,
        scope="code",
        cause=f"{hit.rule}:{file}:{hit.node.line}",
        edits=_edits(hit, text, language),
    )


def _edits(hit: CodeHit, text: str, language: Language) -> tuple[Edit, ...]:
    if language is Language.PYTHON:
        return python_edits(hit, text)
    return javascript_edits(hit, text) if language is Language.TYPESCRIPT else ()
