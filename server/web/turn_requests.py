"""From OpenAI's bodies to what the session manager takes."""

from __future__ import annotations

import itertools

import msgspec
from msgspec import UNSET

from ...sessions.errors import RequestError
from ...sessions.manager.requests import (
    CompletionRequest,
    MessagesInput,
    TextInput,
    TokenIdsInput,
    ToolChoice,
    ToolChoiceMode,
)
from ...sessions.manager.validation import require_few_messages, require_identifier
from ...sessions.messages import Message, Role, Tool, ToolCall
from ..engine.messages import Priority
from ..engine.sampling_params import SamplingParams
from ..field_names import FieldNames
from .bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    NamedToolChoice,
    fields_without_effect,
    first_refused_value,
    metadata_without_effect,
)
from .grammar_fields import WantedGrammar, wanted_grammar

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
MAX_CHOICES = 128
ELSEWHERE_UNSET = -1  # of top_k and seed, in vLLM and llama.cpp, whose clients send it


def chat_request(body: ChatBody, tenant: str) -> CompletionRequest:
    """The turn that a chat body asks for. Raises RequestError naming the field."""
    _refuse_functions(body)
    _check_values(body)
    if not body.messages:
        raise RequestError("messages is empty", field="messages", remedy="send one message or more")
    require_few_messages(body.messages, "messages")
    return CompletionRequest(
        prompt=MessagesInput(messages=tuple(message_of(i, message) for i, message in enumerate(body.messages))),
        tenant=tenant,
        tools=_tools(body),
        sampling=_sampling(body, _max_tokens(body), _chat_logprobs(body)),
        stop=_stop(body.stop),
        template_arguments=body.chat_template_kwargs or {},
        tool_choice=_tool_choice(body),
        priority=_priority(body),
    )


def completion_request(body: CompletionBody, tenant: str) -> CompletionRequest:
    """The turn that a completion body asks for. Raises RequestError naming the field."""
    _check_values(body)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return CompletionRequest(
        prompt=_prompt(body.prompt),
        tenant=tenant,
        sampling=_sampling(body, max_tokens, body.logprobs),
        stop=_stop(body.stop),
        priority=_priority(body),
    )


def ignored_fields(body: ChatBody | CompletionBody) -> tuple[str, ...]:
    """The fields that were sent and that have no effect, for the header ``x-sessile-ignored``."""
    ignored = [*fields_without_effect(body), *metadata_without_effect(body.metadata)]
    if body.stream_options is not None:
        ignored += [f"stream_options.{name}" for name in fields_without_effect(body.stream_options)]
    if isinstance(body, ChatBody):
        ignored += ["tools[].function.strict" for tool in body.tools or () if "strict" in tool["function"]]
        contents = [message.content for message in body.messages if isinstance(message.content, list)]
        parts = itertools.chain.from_iterable(contents)
        ignored += [f"messages[].content[].{name}" for name in fields_without_effect(*parts)]
    return tuple(ignored)


def _refuse_functions(body: ChatBody) -> None:
    """The fields that tools have replaced."""
    for field, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(body, field) not in (UNSET, None, [], {}, ""):
            raise RequestError(f"{field} is not served", field=field, remedy=f"send {instead} instead")


def _check_values(body: ChatBody | CompletionBody) -> None:
    refuse(first_refused_value(body), "")
    if body.stream_options is not None:
        refuse(first_refused_value(body.stream_options), "stream_options.")
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options without stream", field="stream_options", remedy='send "stream": true, or leave it out'
        )


def refuse(refused: tuple[str, object, tuple[object, ...]] | None, prefix: str) -> None:
    """Raise RequestError for a field that has another than its neutral value."""
    if refused is not None:
        name, _, allowed = refused
        neutral = next((value for value in allowed if value not in (None, "")), None)
        shown = msgspec.json.encode(neutral).decode()
        raise RequestError(
            f"{prefix}{name} is not supported with this value",
            field=prefix + name,
            remedy=f"leave it out, or send {shown}",
        )


def message_of(index: int, message: ChatMessage) -> Message:
    """The message that a client sent as ``messages[index]``. Raises RequestError naming the field."""
    where = f"messages[{index}]"
    refuse(first_refused_value(message), f"{where}.")
    if message.role == "tool" and message.tool_call_id is None:
        raise RequestError(f"{where} is a tool's result without tool_call_id", field=f"{where}.tool_call_id")
    if message.tool_calls and message.role != "assistant":
        raise RequestError(f"{where} has tool_calls, but is not the assistant's", field=f"{where}.tool_calls")
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where} has no content", field=f"{where}.content")
    for call_index, call in enumerate(message.tool_calls or ()):
        require_identifier(call.function.name, f"{where}.tool_calls[{call_index}].function.name")
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    return Message(
        role=Role(message.role),
        content=content or "",
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning_content,
    )


def _tools(body: ChatBody) -> tuple[Tool, ...]:
    for index, tool in enumerate(body.tools or ()):
        function = tool.get("function")
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if tool.get("type") != "function" or not named:
            raise RequestError(
                f"tools[{index}] is not a function with a name",
                field=f"tools[{index}]",
                remedy='send {"type": "function", "function": {"name": …, "parameters": …}}',
            )
    return tuple(body.tools or ())


def _tool_choice(body: ChatBody) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    if body.tool_choice not in (None, "auto", "none") and not body.tools:
        raise RequestError("a call is required without tools", field="tool_choice", remedy='send tools, or "auto"')
    match body.tool_choice:
        case NamedToolChoice(function=function):
            return ToolChoice(mode=ToolChoiceMode.REQUIRED, name=function.name, parallel=parallel)
        case None:
            return ToolChoice(parallel=parallel)
        case mode:
            return ToolChoice(mode=ToolChoiceMode(mode), parallel=parallel)


def sent_names(body: ChatBody | CompletionBody, wanted: WantedGrammar | None) -> FieldNames:
    """What the body, which wants that grammar, calls the fields that errors name."""
    sent = {} if wanted is None else {"grammar": wanted.field}
    if isinstance(body, ChatBody):
        sent |= {"logprobs": "top_logprobs", r"tool_choice\.name": "tool_choice.function.name"}
        if body.max_completion_tokens is not None:
            sent["max_tokens"] = "max_completion_tokens"
    return FieldNames(sent)


def _max_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is None:
        return body.max_tokens
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise RequestError(
            "max_tokens and max_completion_tokens differ", field="max_tokens", remedy="send max_completion_tokens alone"
        )
    return body.max_completion_tokens


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError("top_logprobs without logprobs", field="top_logprobs", remedy='send "logprobs": true')
    return None


def _sampling(body: ChatBody | CompletionBody, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    defaults, wanted = SamplingParams(), wanted_grammar(body)
    params = SamplingParams(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_k=0 if body.top_k in (None, ELSEWHERE_UNSET) else body.top_k,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=None if body.seed == ELSEWHERE_UNSET else body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        repetition_penalty=defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}),
        grammar=None if wanted is None else wanted.grammar,
    )
    with sent_names(body, wanted).told():
        params.validate()
    return params


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}", field="logit_bias", remedy="keys are token ids, 0 or more"
            )
    return {int(key): bias for key, bias in biases.items()}


def num_choices(body: ChatBody | CompletionBody) -> int:
    """How many answers are asked for. Raises RequestError naming ``n`` or ``best_of``."""
    count = 1 if body.n is None else body.n
    if not 1 <= count <= MAX_CHOICES:
        raise RequestError(f"n is {count}", field="n", remedy=f"it must be from 1 to {MAX_CHOICES}")
    if isinstance(body, CompletionBody) and body.best_of not in (None, count):
        raise RequestError(
            f"best_of is {body.best_of}, n is {count}", field="best_of", remedy="leave it out: all answers are returned"
        )
    return count


def of_choice(turn: CompletionRequest, index: int) -> CompletionRequest:
    """The turn of one of several answers: each has a seed of its own, the first one that of the request.

    The first is kept as a session; any of them that is continued becomes one then.
    """
    if not index:
        return turn
    seed = turn.sampling.seed
    sampling = turn.sampling
    if seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=(seed + index) % 2**63)
    return msgspec.structs.replace(turn, sampling=sampling, keep=False)


def _priority(body: ChatBody | CompletionBody) -> Priority:
    if body.priority is not None:
        return Priority[body.priority.upper()]
    return Priority.BACKGROUND if body.service_tier == "flex" else Priority.INTERACTIVE


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _prompt(prompt: str | list[str | int | list[int]]) -> TextInput | TokenIdsInput:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        only = prompt[0]
        return _prompt(only if isinstance(only, str) else list(only))
    if not prompt:
        raise RequestError("prompt is empty", field="prompt", remedy="send one token or more")
    if isinstance(prompt, str):
        return TextInput(text=prompt)
    token_ids = tuple(item for item in prompt if isinstance(item, int))
    if len(token_ids) != len(prompt):
        raise RequestError(
            "prompt has several prompts", field="prompt", remedy="send one text or one list of token ids a request"
        )
    return TokenIdsInput(token_ids=token_ids)
