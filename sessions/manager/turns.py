"""Turns on the served model: prompts out of requests, runs out of prompts."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TypeVar

import msgspec

from ...server.engine.grammar import Grammar, GrammarKind
from ...server.engine.messages import EngineReady, SubmitTurn, TurnUsage
from ...server.engine.sampling_params import SamplingParams
from ...server.text.answer_format import TextConfig, choose_format
from ...server.text.answer_parser import AnswerParser
from ...server.text.chat_template import ChatTemplate
from ...server.text.grammar_checker import GrammarChecker
from ...server.text.grammar_config import GrammarConfig
from ...server.text.reasoning import ReasoningSplitter, opens_reasoning
from ...server.text.thoughtful_grammar import after_thought
from ...server.text.tokenizer import Tokenizer
from ...server.text.tool_calls import CallNumbers, ToolCallParser
from ...server.text.tool_calls.grammar import Thought, arguments_schema
from ..cache.lifetime import Lifetime
from ..errors import EngineError, RequestError
from ..ids import unguessable
from ..messages import Tool
from ..session import EntryKind, ModelIdentity, NewEntry, Session, SessionLog
from . import validation
from .call_ids import call_ids
from .ports import TurnEngine, TurnObserver, Unobserved
from .prompts import PromptBuilder, in_chat
from .requests import AppendRequest, CompletionRequest, GenerateRequest, ToolChoiceMode
from .turn import AnswerReading, TurnRun

_TAG_TOKENS = 24  # of the prompt's end, to see whether it opens reasoning
_PREFILL_ONLY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

_Result = TypeVar("_Result")
_TurnRequest = TypeVar("_TurnRequest", GenerateRequest, CompletionRequest)


class TurnPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens of a turn's prompt, and the entry (None: nothing new) that its input adds to the log."""

    token_ids: list[int]
    entry: NewEntry | None
    in_chat: bool  # whether the answer is a message
    answer_start: int | None = None  # where the answer began, of one that goes on where it was cut off
    logged_tokens: int  # of ``token_ids``, those whose KV was computed before, here or elsewhere


class TurnTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What goes along with a turn's prompt.

    ``persist``: write its KV to disk when it ends; ``lifetime``: how far it may ever go. ``deadline_s``: a turn that
    still waits after so many seconds ends. ``expected_token_ids``: what the answer may be like, to draft from.
    ``tools``: those that it may call. ``logged_tokens``: of the prompt's tokens, those whose KV was computed before,
    here or elsewhere.
    """

    persist: bool = True
    lifetime: Lifetime = Lifetime.DURABLE
    deadline_s: float | None = None
    expected_token_ids: tuple[int, ...] = ()
    tools: tuple[Tool, ...] = ()
    logged_tokens: int = 0
    owner: str = ""  # the session, of a turn whose request names none


class Turns:
    """Makes prompts and runs turns. Rendering and tokenising have a thread of their own: no text stops the loop."""

    def __init__(
        self,
        engine: TurnEngine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        model_aliases: Collection[str] = (),
        text_config: TextConfig | None = None,
        grammars: GrammarConfig | None = None,
        observer: TurnObserver | None = None,
    ) -> None:
        self._engine = engine
        self.observer: TurnObserver = observer if observer is not None else Unobserved()
        self._model_aliases = frozenset(model_aliases)
        self._tokenizer = tokenizer
        self.format = choose_format(
            chat_template.source, lambda text: tokenizer.token_id(text) is not None, text_config or TextConfig()
        )
        self.prompts = PromptBuilder(tokenizer, chat_template, self.format)
        self._tokenising = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessile-tokenising")
        self._grammars = GrammarChecker(tokenizer, grammars or GrammarConfig())

    def shutdown(self) -> None:
        """Let go of the tokenising thread and of the process that compiles grammars."""
        self._tokenising.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()

    async def check_grammar(self, grammar: Grammar | None, field: str) -> None:
        """Raise RequestError unless ``grammar`` (None: anything goes) can be used; asking again costs nothing."""
        if grammar is not None:
            await self._grammars.check(grammar, self._engine.info.vocab_size, field)

    def engine_info(self) -> EngineReady:
        """The loaded model. Raises EngineError while none is ready."""
        return self._engine.info

    def require_model(self, model: str | None) -> None:
        """Raise RequestError unless ``model`` is None or a name of the served one."""
        served = self._engine.info.model
        if model is not None and model != served and model not in self._model_aliases:
            raise RequestError(
                f"the model {model!r} is not served here", field="model", remedy=f"leave it out, or name {served!r}"
            )

    def identity(self, engine: EngineReady) -> ModelIdentity:
        """What tokens made now belong to."""
        return ModelIdentity(
            name=engine.model,
            model_fingerprint=engine.fingerprint,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
        )

    async def tokenise(self, work: Callable[[], _Result]) -> _Result:
        """Do ``work`` on the tokenising thread."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenising, work)

    async def prompt(self, session: Session, log: SessionLog, request: GenerateRequest | AppendRequest) -> TurnPrompt:
        """The prompt of a session's next turn, or of what is appended.

        Raises:
            ContextOverflow: it does not fit, with the answer.
            RequestError: its input cannot be rendered, or there is nothing to answer.
        """
        answered = isinstance(request, GenerateRequest)
        kind = EntryKind.PROMPT if answered else EntryKind.INPUT
        limit = self.engine_info().context_length
        entry = await self.tokenise(lambda: self.prompts.entry(session, log, request.input, kind, limit))
        token_ids = log.token_ids() + list(entry.token_ids if entry is not None else ())
        max_tokens = request.sampling.max_tokens if isinstance(request, GenerateRequest) else None
        validation.require_room(len(token_ids), max_tokens, self.engine_info(), "input", "sampling.max_tokens")
        return TurnPrompt(
            token_ids=token_ids,
            entry=entry,
            in_chat=in_chat(session, log, entry),
            answer_start=_answer_start(log) if entry is None else None,
            logged_tokens=computed_before(log.num_tokens),
        )

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens included. Raises RequestError for one that is none."""
        size = self.engine_info().vocab_size
        if any(not 0 <= token_id < size for token_id in token_ids):
            raise RequestError("a token id is outside of the vocabulary", field="tokens", remedy=f"use 0 to {size - 1}")
        return await self.tokenise(lambda: self._tokenizer.decode(token_ids, skip_special=False))

    async def expected_tokens(self, text: str | None) -> tuple[int, ...]:
        """What an answer may be like, in tokens; as many as an answer can have."""
        if not text:
            return ()
        token_ids = await self.tokenise(lambda: self._tokenizer.encode(text, allow_special=False))
        return tuple(token_ids[: self.engine_info().context_length])

    def message_reading(
        self,
        token_ids: list[int],
        request: GenerateRequest | CompletionRequest,
        tools: Sequence[Tool],
        answer_start: int | None = None,
    ) -> AnswerReading:
        """How to read an answer to ``token_ids`` that is a message and may call ``tools``.

        ``answer_start``: where in ``token_ids`` the answer began, of one that was cut off.
        """
        parser = AnswerParser(self._reasoning(token_ids, answer_start), self._calls(request, tools))
        return AnswerReading(parser, self.format.special_texts, request.stop, not request.tool_choice.parallel)

    async def with_required_calls(
        self, token_ids: list[int], request: _TurnRequest, tools: Sequence[Tool]
    ) -> _TurnRequest:
        """The request, with a grammar of calls where its answer must be calls.

        Raises:
            RequestError: it has a grammar of its own, or a tool's schema cannot be a grammar.
        """
        choice = request.tool_choice
        if choice.mode is not ToolChoiceMode.REQUIRED:
            return request
        if request.sampling.grammar is not None:
            raise RequestError(
                "the answer cannot be a call and match another grammar",
                field="tool_choice",
                remedy="leave out tool_choice, or the form of the answer",
            )
        numbered = [(index, tool["function"]) for index, tool in enumerate(tools)]
        chosen = [(index, function) for index, function in numbered if choice.name in (None, function["name"])]
        for index, function in chosen:
            schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(arguments_schema(function)))
            await self.check_grammar(schema, f"tools[{index}].function.parameters")
        calls = self.format.calls_grammar(
            [function for _, function in chosen],
            several=choice.parallel,
            opened=self._opens_reasoning(token_ids),
            special=self._special_token,
        )
        await self.check_grammar(calls, "tools")
        sampling = msgspec.structs.replace(request.sampling, grammar=calls)
        return msgspec.structs.replace(request, sampling=sampling)

    async def with_thought(self, token_ids: list[int], request: _TurnRequest) -> _TurnRequest:
        """The request of a message: a grammar of the caller's holds behind the reasoning of a model that reasons.

        Raises:
            RequestError: the grammar cannot be used.
        """
        tags, grammar = self.format.tags, request.sampling.grammar
        if tags is None or grammar is None or request.tool_choice.mode is ToolChoiceMode.REQUIRED:
            return request
        thought = Thought(tags, self._opens_reasoning(token_ids))
        thoughtful = after_thought(grammar, thought, self._special_token)
        await self.check_grammar(thoughtful, "grammar")
        sampling = msgspec.structs.replace(request.sampling, grammar=thoughtful)
        return msgspec.structs.replace(request, sampling=sampling)

    def plain_reading(self, request: GenerateRequest | CompletionRequest) -> AnswerReading:
        """How to read an answer that is text and nothing else."""
        return AnswerReading(AnswerParser(None, None), stop=request.stop)

    def run(
        self,
        token_ids: list[int],
        request: GenerateRequest | CompletionRequest,
        reading: AnswerReading,
        terms: TurnTerms,
    ) -> TurnRun:
        """A turn that continues ``token_ids``, ready to be read."""
        turn = self._submission(token_ids, request.sampling, request, terms)
        return TurnRun(self._engine, self._tokenizer, turn, reading)

    def _reasoning(self, token_ids: list[int], answer_start: int | None) -> ReasoningSplitter | None:
        tags = self.format.tags
        return None if tags is None else ReasoningSplitter(tags, opened=self._opens_reasoning(token_ids, answer_start))

    def _opens_reasoning(self, token_ids: list[int], answer_start: int | None = None) -> bool:
        tags = self.format.tags
        if tags is None:
            return False
        start = len(token_ids) if answer_start is None else answer_start
        prompt_end = self._tokenizer.decode(token_ids[max(0, start - _TAG_TOKENS) : start], skip_special=False)
        return opens_reasoning(prompt_end, tags, self._tokenizer.decode(token_ids[start:], skip_special=False))

    def _special_token(self, text: str) -> int | None:
        token_id = self._tokenizer.token_id(text)
        return token_id if token_id in self._tokenizer.token_bytes.special_ids else None

    def _calls(self, request: GenerateRequest | CompletionRequest, tools: Sequence[Tool]) -> ToolCallParser | None:
        if not tools or request.tool_choice.mode is ToolChoiceMode.NONE:
            return None
        new_id = call_ids(self.format.tools, *_secret_words(request))
        return self.format.tool_parser(CallNumbers(new_id), [tool["function"]["name"] for tool in tools])

    async def prefill(self, prompt: TurnPrompt, request: AppendRequest, terms: TurnTerms) -> TurnUsage:
        """Compute the KV of ``prompt``. The engine samples a token to do so, which is dropped.

        Raises:
            EngineError: the engine died meanwhile.
        """
        turn = self._submission(prompt.token_ids, _PREFILL_ONLY, request, terms)
        async with aclosing(self._engine.generate(turn)) as outputs:
            async for output in outputs:
                if output.usage is not None:
                    return msgspec.structs.replace(output.usage, completion_tokens=0)
        raise EngineError("the engine ended the turn without its usage", remedy="send it again", retry_after_s=1.0)

    def _submission(
        self,
        token_ids: list[int],
        sampling: SamplingParams,
        request: AppendRequest | GenerateRequest | CompletionRequest,
        terms: TurnTerms,
    ) -> SubmitTurn:
        return SubmitTurn(
            turn_id=unguessable(""),
            token_ids=token_ids,
            sampling=sampling,
            eos_token_ids=tuple(sorted(self._tokenizer.eos_token_ids)),
            cache_salt=request.tenant,
            priority=request.priority,
            tenant=request.tenant,
            owner=terms.owner if isinstance(request, CompletionRequest) else request.session_id,
            persist=terms.persist,
            lifetime=terms.lifetime,
            deadline_s=terms.deadline_s,
            expected_token_ids=terms.expected_token_ids,
            tool_schema=_tool_schema(terms.tools),
            logged_tokens=terms.logged_tokens,
        )


def _tool_schema(tools: tuple[Tool, ...]) -> str:
    """A name for ``tools``, the same for the same ones; empty for none."""
    if not tools:
        return ""
    return hashlib.blake2b(msgspec.json.encode(tools, order="deterministic"), digest_size=16).hexdigest()


def _answer_start(log: SessionLog) -> int | None:
    """Where the answer at a log's end begins."""
    start = None
    for part in reversed(log.parts):
        if part.entry.kind is not EntryKind.OUTPUT:
            break
        start = part.entry.start
    return start


def _secret_words(request: GenerateRequest | CompletionRequest) -> tuple[str, ...]:
    """What makes the ids of a turn's calls; nothing for a turn that is never run again."""
    if isinstance(request, CompletionRequest) or request.request_id is None:
        return ()
    return request.session_id, request.request_id


def computed_before(kept_tokens: int) -> int:
    """Of tokens that a turn left behind, how many were computed: the one sampled last never was an input."""
    return max(0, kept_tokens - 1)
