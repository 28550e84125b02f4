"""The exact tokens of conversations that clients send whole each time, so that their past is never tokenised again.

A client of a stateless API sends messages back as text. Rendering and tokenising an answer anew may give other tokens
than were sampled (a template that drops old reasoning, a tool call that comes back with other white space), and every
token behind the first difference would be computed again. Here the tokens are found by the messages instead.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..messages import Message, Role, Tool
from ..session import Place

Key = bytes


class ConversationKeys:
    """Names of a conversation's beginnings: one for each of its messages, over that message and all before it.

    Equal for messages that say the same: arguments of tool calls are compared as JSON values, reasoning not at all,
    since most clients do not send it back. ``template_arguments`` None: of a session whose turns have none,
    whatever those of a client that continues it are.
    """

    def __init__(self, tenant: str, tools: Sequence[Tool], template_arguments: dict[str, Any] | None) -> None:
        root = msgspec.json.encode([tenant, list(tools), template_arguments], order="deterministic")
        self._root = hashlib.blake2b(root, digest_size=16).digest()

    def of(self, messages: Sequence[Message]) -> list[Key]:
        """One key for each message."""
        return self.along([canonical(message) for message in messages])

    def along(self, said: Sequence[bytes]) -> list[Key]:
        """As ``of``, for messages as ``canonical`` writes them."""
        return list(itertools.accumulate(said, _after, initial=self._root))[1:]

    def after(self, key: Key, message: Message) -> Key:
        """The key of a conversation that goes on with ``message``."""
        return _after(key, canonical(message))


def _after(key: Key, said: bytes) -> Key:
    return hashlib.blake2b(key + said, digest_size=16).digest()


def client_key(key: Key, client: str) -> Key:
    """The name of a conversation among those of one client."""
    return hashlib.blake2b(key + client.encode(), digest_size=16, person=b"client").digest()


def place_key(place: Place) -> Key:
    """A name for the tokens up to a place of a session's log."""
    assert place.head is not None
    return b"%d.%d" % (place.head.entry_id, place.head.used)


def canonical(message: Message) -> bytes:
    """What a message says, the same for all that say the same; see ``ConversationKeys``."""
    content = message.content.strip() if message.role is Role.ASSISTANT else message.content
    calls = [(call.name, _canonical_arguments(call.arguments)) for call in message.tool_calls]
    return msgspec.json.encode([message.role, content, calls, message.tool_call_id, message.name])


def _canonical_arguments(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}", parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> float | int:
    """JavaScript writes 1.0 back as 1."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


class RecordedCalls:
    """Answers that called tools, by the ids of their calls; the oldest are forgotten first.

    Clients change more of such an answer than its arguments' white space: many drop the text beside the calls. The ids
    say which answer is meant.
    """

    def __init__(self, max_calls: int = 65_536) -> None:
        self._max_calls = max_calls
        self._answers: OrderedDict[tuple[str, str], Message] = OrderedDict()

    def remember(self, tenant: str, answer: Message) -> None:
        """Remember an answer under each of its calls."""
        for call in answer.tool_calls:
            self._answers[tenant, call.id] = answer
        while len(self._answers) > self._max_calls:
            self._answers.popitem(last=False)

    def recorded(self, tenant: str, sent: Message) -> Message:
        """The answer that ``sent`` was, if it is known and says no other; else ``sent`` itself."""
        if not sent.tool_calls:
            return sent
        answer = self._answers.get((tenant, sent.tool_calls[0].id))
        return answer if answer is not None and _says_the_same(sent, answer) else sent


def _says_the_same(sent: Message, answer: Message) -> bool:
    """Whether the calls are the same, and the text is, or is left out."""
    same_text = sent.content.strip() in ("", answer.content.strip())
    return same_text and _calls(sent) == _calls(answer)


def _calls(message: Message) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, _canonical_arguments(call.arguments)) for call in message.tool_calls]


class _Conversation:
    """The tokens that a conversation adds to the one before it."""

    __slots__ = ("before", "token_ids")

    def __init__(self, before: Key | None, token_ids: Sequence[int]) -> None:
        self.before = before
        self.token_ids = array("i", token_ids)


class _TenantMemory:
    """One tenant's conversations, least recently used first.

    Using one uses all those before it, and those last: so what is oldest never has another that grew out of it.
    """

    def __init__(self) -> None:
        self._conversations: OrderedDict[Key, _Conversation] = OrderedDict()
        self.num_tokens = 0

    def recall(self, key: Key) -> list[int] | None:
        """All tokens of a conversation, from its beginning."""
        path = list(self._path(key))
        if not path:
            return None
        self._touch(key)
        return [token_id for conversation in reversed(path) for token_id in conversation.token_ids]

    def add(self, key: Key, before: Key | None, token_ids: Sequence[int]) -> None:
        """Remember all tokens of a conversation, sharing those of ``before`` if it is still here and begins it."""
        if key not in self._conversations:
            shared = self.recall(before) if before is not None else None
            if shared is None or shared != list(token_ids[: len(shared)]):
                before, shared = None, []
            self._conversations[key] = _Conversation(before, token_ids[len(shared) :])
            self.num_tokens += len(token_ids) - len(shared)
        self._touch(key)

    def shrink(self, max_conversations: int, max_tokens: int) -> None:
        """Forget the oldest until both bounds hold."""
        while self._conversations and (len(self._conversations) > max_conversations or self.num_tokens > max_tokens):
            _, forgotten = self._conversations.popitem(last=False)
            self.num_tokens -= len(forgotten.token_ids)

    def _path(self, key: Key | None) -> Iterator[_Conversation]:
        while key is not None:
            conversation = self._conversations.get(key)
            if conversation is None:
                return
            yield conversation
            key = conversation.before

    def _touch(self, key: Key | None) -> None:
        while key is not None and key in self._conversations:
            self._conversations.move_to_end(key)
            key = self._conversations[key].before


class ReplayMemory:
    """Remembers conversations' tokens; the least recently used are forgotten first.

    A conversation that grew out of another one holds only what it adds. Bounded for each tenant by conversations and
    tokens, so that nobody's requests push out another tenant's memory; and in all by tenants and tokens (of 4 bytes),
    where the tenants heard of least recently go first.
    """

    def __init__(
        self,
        *,
        max_conversations: int = 4096,
        max_tokens: int = 4_000_000,
        max_tenants: int = 256,
        max_tokens_in_all: int = 32_000_000,
    ) -> None:
        self._max_conversations = max_conversations
        self._max_tokens = max_tokens
        self._max_tenants = max_tenants
        self._max_tokens_in_all = max_tokens_in_all
        self._tenants: OrderedDict[str, _TenantMemory] = OrderedDict()

    def tokens_after(self, tenant: str, keys: Sequence[Key]) -> tuple[int, list[int]]:
        """The longest remembered beginning of a conversation: how many messages, and their tokens."""
        memory = self._tenants.get(tenant)
        if memory is None:
            return 0, []
        self._tenants.move_to_end(tenant)
        for count in range(len(keys), 0, -1):
            token_ids = memory.recall(keys[count - 1])
            if token_ids is not None:
                return count, token_ids
        return 0, []

    def tokens(self, tenant: str, key: Key) -> list[int] | None:
        """The tokens that are remembered under ``key``."""
        return self.tokens_after(tenant, [key])[1] or None

    def remember(self, tenant: str, key: Key, before: Key | None, token_ids: Sequence[int]) -> None:
        """Remember all tokens of a conversation that may have grown out of ``before``."""
        memory = self._tenants.setdefault(tenant, _TenantMemory())
        self._tenants.move_to_end(tenant)
        memory.add(key, before, token_ids)
        memory.shrink(self._max_conversations, self._max_tokens)
        while len(self._tenants) > self._max_tenants or self.num_tokens > self._max_tokens_in_all:
            self._tenants.popitem(last=False)

    @property
    def num_tokens(self) -> int:
        """Tokens held, of all tenants."""
        return sum(memory.num_tokens for memory in self._tenants.values())
