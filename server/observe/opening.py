"""Makes the observatory that the configuration asks for."""

from __future__ import annotations

import logging

from ...prompt_lint.errors import UnusableInput
from ...prompt_lint.live import PromptReading
from ...prompt_lint.rendering import ChatTemplate as LintTemplate
from ..text.answer_format import TextConfig, choose_format
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import Tokenizer
from ..text.tools_in_text import ToolsInText
from .config import ObserveConfig
from .observatory import Observatory
from .spans import open_spans
from .trace_log import open_trace_log

logger = logging.getLogger(__name__)


def open_observatory(
    config: ObserveConfig, model: str, version: str, tokenizer: Tokenizer, template: ChatTemplate, text: TextConfig
) -> Observatory:
    """An observatory of turns on ``model``, with a trace log and spans where these are configured.

    Raises:
        ConfigError: the trace log's folder cannot be written, or the packages for spans are missing.
    """
    return Observatory(
        config,
        model=model,
        reading=reading_of(tokenizer, template, text),
        trace_log=open_trace_log(config, tokenizer, model),
        spans=open_spans(config.otlp_endpoint, model, version) if config.otlp_endpoint else None,
    )


def reading_of(tokenizer: Tokenizer, template: ChatTemplate, text: TextConfig) -> PromptReading:
    """How prompts are made here. A template that prompt-lint cannot read is left out: bodies are compared then."""
    answers = choose_format(template.source, lambda name: tokenizer.token_id(name) is not None, text)
    try:
        rendered_by = LintTemplate(template.source, writing=ToolsInText(template.source, answers).opening)
    except UnusableInput as error:
        logger.warning("misses are explained without the chat template: %s", error)
        rendered_by = None

    def decode(token_ids: list[int]) -> str | None:
        return tokenizer.decode(token_ids, skip_special=False)

    return PromptReading(rendered_by, decode, tokenizer.bos_token_id)
