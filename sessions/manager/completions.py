"""Turns without a session: what stateless clients send, with the exact tokens of their earlier turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from ...server.engine.messages import EngineReady
from ..errors import ContextOverflow, RequestError
from ..messages import Message, Role
from . import validation
from .replay import ConversationKeys, Key, ReplayMemory
from .requests import CompletionRequest, MessagesInput, Miss, TextInput, TokenIdsInput, TurnEvent, TurnFinished
from .running import RunningWork
from .turn import TurnResult
from .turn_content import content_of_request
from .turns import Turns, TurnTerms, computed_before


class _Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's tokens; for a conversation also its key, and the key of the remembered one it grew out of."""

    token_ids: list[int]
    key: Key | None = None
    grew_from: Key | None = None
    logged_tokens: int = 0
    conversation: str = ""


class Completions:
    """Runs turns that no session keeps. What conversations said is remembered in memory, in tokens."""

    def __init__(self, turns: Turns, replay: ReplayMemory) -> None:
        self._turns = turns
        self._replay = replay

    async def complete(self, request: CompletionRequest, running: RunningWork) -> AsyncGenerator[TurnEvent, None]:
        """The turn's deltas and its end."""
        with running.admitted():
            engine = self._turns.engine_info()
            validation.require_completion(request, engine)
            self._turns.require_model(request.model)
            await self._turns.check_grammar(request.sampling.grammar, "grammar")
            keys = ConversationKeys(request.tenant, request.tools, request.template_arguments)
            try:
                prompt = await self._prompt(request, keys, engine)
            except ContextOverflow as error:
                error.field = error.field or _field(request)
                raise
            validation.require_room(len(prompt.token_ids), request.sampling.max_tokens, engine, _field(request))
            bound = await self._turns.with_required_calls(prompt.token_ids, request, request.tools)
            reading = (
                self._turns.plain_reading(bound)
                if prompt.key is None
                else self._turns.message_reading(prompt.token_ids, bound, request.tools)
            )
            terms = TurnTerms(tools=request.tools, logged_tokens=prompt.logged_tokens)
            run = self._turns.run(prompt.token_ids, bound, reading, terms)
            observer = self._turns.observer
            observer.asked(run.turn, prompt.conversation, partial(content_of_request, request))
            async with aclosing(run.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
            self._remember(request, keys, prompt, run.result)
            miss = observer.miss_of(run.turn.turn_id)
            yield _finished(prompt, run.result, miss)

    async def _prompt(self, request: CompletionRequest, keys: ConversationKeys, engine: EngineReady) -> _Prompt:
        prompts, limit = self._turns.prompts, engine.context_length
        match request.prompt:
            case TokenIdsInput(token_ids):
                return _Prompt(token_ids=list(token_ids))
            case TextInput(text):
                return _Prompt(token_ids=list(await self._turns.tokenise(lambda: prompts.completion(text, limit))))
            case MessagesInput():
                return await self._conversation(request, request.prompt, keys, limit)

    async def _conversation(
        self, request: CompletionRequest, conversation: MessagesInput, keys: ConversationKeys, limit: int
    ) -> _Prompt:
        prompts, messages = self._turns.prompts, conversation.messages
        message_keys = await self._turns.tokenise(lambda: keys.of(messages))
        conversation_name = _conversation_name(request, messages, message_keys)
        count, remembered = self._replay.tokens_after(request.tenant, message_keys[:-1])
        if count:
            continued = await self._continuation(request, messages[count:], remembered, limit)
            if continued is not None:
                return _Prompt(
                    token_ids=continued,
                    key=message_keys[-1],
                    grew_from=message_keys[count - 1],
                    logged_tokens=computed_before(len(remembered)),
                    conversation=conversation_name,
                )
        whole = await self._turns.tokenise(
            lambda: prompts.prompt(messages, request.tools, request.template_arguments, limit)
        )
        return _Prompt(token_ids=list(whole), key=message_keys[-1], conversation=conversation_name)

    async def _continuation(
        self, request: CompletionRequest, new: Sequence[Message], remembered: list[int], limit: int
    ) -> list[int] | None:
        """Remembered tokens and those of the new messages; None where the template can only render from the start."""
        try:
            following = await self._turns.tokenise(
                lambda: self._turns.prompts.prompt_after_answer(
                    new, request.tools, request.template_arguments, remembered[-1], limit
                )
            )
        except ContextOverflow:
            raise
        except RequestError:
            return None
        return remembered + list(following)

    def _remember(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: _Prompt, result: TurnResult
    ) -> None:
        if prompt.key is not None:
            key = keys.after(prompt.key, result.message)
            self._replay.remember(request.tenant, key, prompt.grew_from, [*prompt.token_ids, *result.token_ids])


def _conversation_name(request: CompletionRequest, messages: Sequence[Message], keys: Sequence[Key]) -> str:
    """The client's own name for it, else one for all conversations that begin with the same user's message."""
    if request.client_session:
        return request.client_session
    first = next((index for index, message in enumerate(messages) if message.role is Role.USER), len(messages) - 1)
    return f"chat-{keys[first].hex()[:16]}"


def _finished(prompt: _Prompt, result: TurnResult, miss: Miss | None) -> TurnFinished:
    return TurnFinished(
        finish_reason=result.finish_reason,
        stop_cause=result.stop_cause,
        usage=result.usage,
        num_tokens=len(prompt.token_ids) + len(result.token_ids),
        miss=miss,
        tool_calls=result.message.tool_calls,
        reasoning_tokens=result.reasoning_tokens,
    )


def _field(request: CompletionRequest) -> str:
    return "messages" if isinstance(request.prompt, MessagesInput) else "prompt"
