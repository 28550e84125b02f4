"""What callers ask of the session manager, and the sessions that they get: plain frozen values, the same for gRPC and
HTTP. What a turn tells is in ``turn_events.py``."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ...server.engine.messages import Priority, TurnUsage
from ...server.engine.sampling_params import SamplingParams
from ..keeping import Hint, Persistence, PersistencePolicy, Retain
from ..messages import Message, Tool
from ..session import Place, Point, SessionState


class MessagesInput(msgspec.Struct, frozen=True, tag="messages"):
    """Messages, rendered through the model's chat template; only these are tokenised, history is never again."""

    messages: tuple[Message, ...]


class TextInput(msgspec.Struct, frozen=True, tag="text"):
    """Text that is tokenised as it stands, without a template. Special tokens in it are recognised."""

    text: str


class TokenIdsInput(msgspec.Struct, frozen=True, tag="token_ids"):
    """Token ids, appended as they are."""

    token_ids: tuple[int, ...]


class ToolResultInput(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of one tool call; rendered as a message of role ``tool``."""

    tool_call_id: str
    content: str
    name: str | None = None


TurnInput = MessagesInput | TextInput | TokenIdsInput | ToolResultInput


class ToolChoiceMode(enum.StrEnum):
    """Whether the model calls tools."""

    AUTO = "auto"  # as it likes
    NONE = "none"  # it does not; what looks like a call is text
    REQUIRED = "required"  # its answer is calls and nothing else


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which tools an answer may or must call. ``name``: this one (with REQUIRED). ``parallel``: several at once."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str | None = None
    parallel: bool = True


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """Open a session. ``model`` None is the served one. The system prompt and the tools hold for its whole life.

    ``persistence`` None: as the server is configured.
    """

    tenant: str = ""
    model: str | None = None
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    request_id: str | None = None
    persistence: PersistencePolicy | None = None


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """What each change of a session carries.

    ``expected_version`` None does not check; ``request_id`` None makes a repeated request a new one.
    """

    session_id: str
    tenant: str = ""
    expected_version: int | None = None
    request_id: str | None = None


class AppendRequest(Mutation, frozen=True, kw_only=True):
    """Add to the log and prefill, without sampling."""

    input: TurnInput
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


class GenerateRequest(Mutation, frozen=True, kw_only=True):
    """Add ``input`` (None: nothing, go on from the log as it is) and sample an answer.

    ``stop``: strings that end the turn; the text ends before the first of them that appears, while the log keeps the
    sampled tokens up to the one that completed it. ``deadline_s``: seconds that the caller waits at most, from now; the
    same request may be sent again with another.
    """

    input: TurnInput | None = None
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    tool_choice: ToolChoice = ToolChoice()
    deadline_s: float | None = None


class ForkRequest(Mutation, frozen=True, kw_only=True):
    """Another session on the same log, up to ``at`` (None: all of it). Does not change the source."""

    at: Point | None = None


class RollbackRequest(Mutation, frozen=True, kw_only=True):
    """Go back to a point of the session's own log."""

    to: Point


class CloseRequest(Mutation, frozen=True, kw_only=True):
    """Close: the session is not found afterwards."""


class HintRequest(Mutation, frozen=True, kw_only=True):
    """Say what is going to happen. Changes neither the log nor the version."""

    hint: Hint


class SuspendRequest(Mutation, frozen=True, kw_only=True):
    """Give the session's device memory back."""


class ResumeRequest(Mutation, frozen=True, kw_only=True):
    """Begin to bring the session's KV back to the device."""


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a file. ``without_kv``: its log alone."""

    session_id: str
    tenant: str = ""
    expected_version: int | None = None
    without_kv: bool = False


class ImportSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session from a file that an export wrote. ``without_kv``: do not use the file's KV.

    ``file_digest`` names the file's content once it was read; callers leave it out.
    """

    tenant: str = ""
    request_id: str | None = None
    without_kv: bool = False
    file_digest: str = ""


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one session, or (None) of all of a tenant."""

    session_id: str | None = None
    tenant: str = ""


class ListSessions(msgspec.Struct, frozen=True, kw_only=True):
    """Open sessions of a tenant, oldest first. ``page_token`` as the last page gave it."""

    tenant: str = ""
    page_size: int = 100
    page_token: str = ""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its owner sees it. Times are seconds since the epoch."""

    session_id: str
    tenant: str
    version: int
    state: SessionState
    model: str
    num_tokens: int
    num_turns: int
    busy: bool
    system: str | None
    tools: tuple[Tool, ...]
    parent_session_id: str | None
    created_at: float
    updated_at: float
    persistence: PersistencePolicy = PersistencePolicy(Persistence.ALWAYS)
    suspended: bool = False


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page; ``next_page_token`` is empty on the last."""

    sessions: tuple[SessionView, ...]
    next_page_token: str


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an append: the session after it, and what its prefill cost."""

    session: SessionView
    tokens_committed: int
    usage: TurnUsage


class HintVerdict(enum.StrEnum):
    """What became of a hint."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"
    REJECTED = "rejected"


class HintOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a hint, and why not all of it. ``expires_in_s`` None: no time limits it."""

    verdict: HintVerdict
    reason: str = ""
    pinned_tokens: int = 0
    expires_in_s: float | None = None


class TokensByTier(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a log by the tier that has their KV."""

    device: int = 0
    host: int = 0
    disk: int = 0
    shared: int = 0


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a suspend. ``tokens_by_tier``: how many of the log's first tokens each tier has now."""

    session: SessionView
    tokens_by_tier: TokensByTier
    device_blocks_freed: int


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a resume: what the next turn can expect. ``tokens_by_tier``: where the log's tokens would come from
    at this moment; ``seconds``: of loading and computing, from now. ``prefetching``: a load to the device has begun;
    where it has not, there is nothing to load, or no room that others do not need."""

    session: SessionView
    tokens_by_tier: TokensByTier
    tokens_to_compute: int
    seconds: float
    prefetching: bool = False


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an import. ``kv_refused``: why KV in the file is not used, empty where it is or there is none."""

    session: SessionView
    kv_tokens: int = 0
    kv_refused: str = ""


class ConversationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation named ``key`` ends at ``place`` of a session's log."""

    key: bytes
    session_id: str
    place: Place


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What a stateless client calls itself or its conversation; empty where it says nothing. It decides which session
    is meant where several hold the same, never what is in one. ``lineage``: names of which a new conversation is a
    branch, the nearest first."""

    name: str = ""
    lineage: tuple[str, ...] = ()


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a client that names no session. ``prompt`` is messages, text or token ids.

    Conversations are recognised by their messages: the exact tokens of earlier turns are replayed (see ``replay.py``).
    With ``keep`` a conversation becomes a session, or advances the one that holds its beginning. ``after`` says which
    beginning is meant, where several sessions hold the same; ``session_id`` names a session that must be taken,
    whatever it said. ``retain``: how to keep its KV from now on.
    """

    prompt: MessagesInput | TextInput | TokenIdsInput
    tenant: str = ""
    model: str | None = None
    tools: tuple[Tool, ...] = ()
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    template_arguments: dict[str, Any] = {}
    client: Client = Client()
    client_session: str = ""  # what the client calls the conversation, if it says so, for whoever explains misses
    sent_body: bytes = b""  # the request as it was sent, for whoever explains misses
    tool_choice: ToolChoice = ToolChoice()
    keep: bool = True
    after: ConversationEnd | None = None
    session_id: str | None = None
    retain: Retain | None = None
