"""How a request of a client that knows no session becomes a prompt: recorded tokens, and new ones behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager

import msgspec

from ...server.engine.messages import EngineReady
from ..errors import ContextOverflow, RequestError
from ..messages import Message, Role
from ..session import LogPart, Place
from .conversations import Conversations, Names, Origin
from .replay import ConversationKeys, Key, RecordedCalls, ReplayMemory, canonical, place_key
from .requests import CompletionRequest, MessagesInput, TextInput, TokenIdsInput
from .transport_lines import neutralised
from .turn import TurnResult
from .turns import Turns, computed_before


class SentBack(msgspec.Struct, frozen=True, kw_only=True):
    """A session's log up to ``place`` as a client sent it: the first ``count`` of the messages."""

    place: Place
    count: int
    messages: Sequence[Message]


class CompletionPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's tokens. For a conversation also its key, that of the remembered one it grew out of, the session that
    holds the beginning, how many tokens that is, the messages that are new, and what was sent for what a session holds.
    """

    token_ids: list[int]
    key: Key | None = None
    grew_from: Key | None = None
    replayed_tokens: int = 0
    conversation: str = ""
    origin: Origin | None = None
    new: Sequence[Message] = ()
    neutralised: tuple[str, ...] = ()
    sent_back: SentBack | None = None

    @property
    def logged_tokens(self) -> int:
        return computed_before(self.replayed_tokens)

    @property
    def new_token_ids(self) -> list[int]:
        return self.token_ids if self.origin is None else self.token_ids[self.origin.place.num_tokens :]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The longest beginning of a conversation whose tokens are recorded: how many messages, the tokens, the name under
    which memory has them, and the session that holds it, if one does."""

    count: int = 0
    token_ids: list[int] = []
    key: Key | None = None
    origin: Origin | None = None

    def sent_back(self, messages: Sequence[Message]) -> SentBack | None:
        """What was sent for the session's log, among all ``messages`` of a request; None where no session holds it."""
        if self.origin is None:
            return None
        return SentBack(place=self.origin.place, count=self.count, messages=messages)


class CompletionPrompts:
    """Makes prompts, and remembers what was said so that the next ones replay it."""

    def __init__(self, turns: Turns, replay: ReplayMemory, conversations: Conversations) -> None:
        self._turns = turns
        self._replay = replay
        self._conversations = conversations
        self._calls = RecordedCalls()

    def remember_calls(self, tenant: str, answer: Message) -> None:
        """Remember an answer by the ids of its calls, so that it is known again however its client changes it."""
        self._calls.remember(tenant, answer)

    def remember_tokens(self, tenant: str, key: Key, prompt: CompletionPrompt, result: TurnResult) -> None:
        """Remember the tokens of a conversation after a turn, under the name ``key``."""
        self._replay.remember(tenant, key, prompt.grew_from, [*prompt.token_ids, *result.token_ids])

    async def prompt(self, request: CompletionRequest, keys: ConversationKeys, engine: EngineReady) -> CompletionPrompt:
        """The prompt of a request.

        Raises:
            ContextOverflow: it cannot fit.
            RequestError: its messages cannot be rendered.
        """
        prompts, limit = self._turns.prompts, engine.context_length
        match request.prompt:
            case TokenIdsInput(token_ids):
                return CompletionPrompt(token_ids=list(token_ids))
            case TextInput(text):
                encoded = await self._turns.tokenise(lambda: prompts.completion(text, limit))
                return CompletionPrompt(token_ids=list(encoded))
            case MessagesInput():
                return await self._conversation(request, request.prompt, keys, engine)

    @asynccontextmanager
    async def counting_rewritten(
        self, request: CompletionRequest, prompt: CompletionPrompt
    ) -> AsyncGenerator[Awaitable[int], None]:
        """How many of the latest answers the template would have written otherwise, counted while a turn runs, which
        need not wait for it. Left before it is known, the counting ends."""
        sent = prompt.sent_back
        parts = () if sent is None else await self._conversations.last_parts(sent.place)
        counting = asyncio.ensure_future(self._rewritten(request, sent, parts))
        try:
            yield counting
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)

    async def _rewritten(self, request: CompletionRequest, sent: SentBack | None, parts: Sequence[LogPart]) -> int:
        if sent is None:
            return 0
        num_messages = sum(len(part.entry.messages) for part in parts)
        recent = sent.messages[max(0, sent.count - num_messages) :]
        prompts = self._turns.prompts
        return await self._turns.tokenise(
            lambda: prompts.rewritten_answers(parts, recent, request.tools, request.template_arguments)
        )

    async def _conversation(
        self, request: CompletionRequest, conversation: MessagesInput, keys: ConversationKeys, engine: EngineReady
    ) -> CompletionPrompt:
        prompts, limit = self._turns.prompts, engine.context_length
        sent = neutralised(conversation.messages)
        messages = tuple(self._calls.recorded(request.tenant, message) for message in sent.messages)
        message_keys, grown = await self._turns.tokenise(lambda: _names(request, keys, messages))
        named = _conversation_name(request, messages, message_keys)
        names = Names(keys=message_keys[:-1], grown=grown[:-1], client=request.client)
        known = await self._known(request, names, engine)
        if known.count:
            continued = await self._continuation(request, messages[known.count :], known.token_ids, limit)
            if continued is not None:
                origin = known.origin if known.origin is not None and known.origin.is_open else None
                return CompletionPrompt(
                    token_ids=continued,
                    key=message_keys[-1],
                    grew_from=known.key,
                    replayed_tokens=len(known.token_ids),
                    origin=origin,
                    new=messages[known.count :] if origin is not None else messages,
                    conversation=named,
                    neutralised=sent.names,
                    sent_back=known.sent_back(sent.messages),
                )
        whole = await self._turns.tokenise(
            lambda: prompts.prompt(messages, request.tools, request.template_arguments, limit)
        )
        return CompletionPrompt(
            token_ids=list(whole),
            key=message_keys[-1],
            new=messages,
            conversation=named,
            neutralised=sent.names,
        )

    async def _known(self, request: CompletionRequest, names: Names, engine: EngineReady) -> _Known:
        """Memory knows conversations that are not kept, too; the store knows those from before a restart, and which
        session holds one: a request that is not kept replays what a session recorded all the same."""
        tenant, identity = request.tenant, self._turns.identity(engine)
        origin = await self._conversations.find(tenant, names, request.after, identity)
        if origin is not None and origin.chosen:
            return await self._logged(tenant, origin)
        count, token_ids = self._replay.tokens_after(tenant, names.keys)
        if origin is not None and origin.count >= count:
            return await self._logged(tenant, origin)
        return _Known(count=count, token_ids=token_ids, key=names.keys[count - 1] if count else None)

    async def _logged(self, tenant: str, origin: Origin) -> _Known:
        """What a session holds; memory has its tokens unless they were pushed out, or are from before a restart."""
        key = place_key(origin.place)
        token_ids = self._replay.tokens(tenant, key)
        if token_ids is None:
            token_ids = (await self._conversations.log(origin.place)).token_ids()
        return _Known(count=origin.count, token_ids=token_ids, key=key, origin=origin)

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


def _names(
    request: CompletionRequest, keys: ConversationKeys, messages: Sequence[Message]
) -> tuple[list[Key], list[Key]]:
    """Names of a conversation's beginnings: those of requests like this one, and those that sessions' turns give."""
    said = [canonical(message) for message in messages]
    return keys.along(said), ConversationKeys(request.tenant, request.tools, None).along(said)


def _conversation_name(request: CompletionRequest, messages: Sequence[Message], keys: Sequence[Key]) -> str:
    """The client's own name for it, else one for all conversations that begin with the same user's message."""
    if request.client_session:
        return request.client_session
    first = next((index for index, message in enumerate(messages) if message.role is Role.USER), len(messages) - 1)
    return f"chat-{keys[first].hex()[:16]}"
