"""Whether two servers, or a warm and a cold cache, give the same greedy answers to the same prompts.

The target runs the conversations turn by turn, on its own answers, so that its cache is used as agents use it. Then the
reference gets every one of the prompts that the target got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ..driver.ask import Ask, Conversation, Sampling
from ..driver.observation import Observation
from ..load.attempts import RETRIES, attempt
from ..workload.plan import BlocksPrompt, Message, MessagesPrompt, TextPrompt, Workload
from ..workload.text import BlockTexts


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """``identical``: share of the answers that are equal from end to end; ``before_difference``: share of all tokens
    (of characters, when a server gives no tokens) that come before an answer's first difference.

    Logarithms of probabilities are compared where the tokens, and all before them, are the same.
    """

    answers: int
    identical: float
    before_difference: float
    unit: str
    compared_logprobs: int
    mean_logprob_difference: float | None
    largest_logprob_difference: float | None
    first_differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt and what came."""

    where: str
    ask: Ask
    seen: Observation


async def converse(
    workload: Workload, open_conversation: Callable[[str], Conversation], max_tokens: int
) -> list[Answered]:
    """Every turn of every session, one after the other, greedy, on the server's own answers. Raises TargetError."""
    texts = BlockTexts()
    answered: list[Answered] = []
    for session in workload.sessions:
        conversation = open_conversation(session.session_id)
        histories: list[tuple[Message, ...]] = []
        for index, turn in enumerate(session.turns):
            sampling = Sampling(
                max_tokens=min(turn.output_tokens or max_tokens, max_tokens), exact_length=False, logprobs=1
            )
            before = () if turn.continues is None else histories[turn.continues]
            if isinstance(turn.prompt, MessagesPrompt):
                whole = before + _without_tools(turn.prompt.messages)
                ask = Ask(
                    index=index,
                    continues=turn.continues,
                    conversation=whole,
                    new=whole[len(before) :],
                    sampling=sampling,
                )
            else:
                whole = ()
                ask = Ask(index=index, text=_text(turn.prompt, texts), sampling=sampling)
            seen = Observation()
            await attempt(conversation, ask, seen, RETRIES)
            histories.append((*whole, Message("assistant", seen.text)))
            answered.append(Answered(f"{session.session_id}, turn {index}", ask, seen))
        await conversation.close()
    return answered


async def answer_again(
    answered: Sequence[Answered], open_conversation: Callable[[str], Conversation]
) -> list[Answered]:
    """The same prompts to a reference, each in a conversation of its own. Raises TargetError."""
    again: list[Answered] = []
    for number, one in enumerate(answered):
        conversation = open_conversation(str(number))
        seen = Observation()
        await attempt(conversation, one.ask, seen, RETRIES)
        await conversation.close()
        again.append(Answered(one.where, one.ask, seen))
    return again


def agreement(ours: Sequence[Answered], theirs: Sequence[Answered]) -> Agreement:
    """Of answers to the same prompts, in the same order."""
    with_tokens = all(one.seen.logprobs for one in (*ours, *theirs))
    identical = same = total = 0
    differences: list[float] = []
    places: list[str] = []
    for mine, other in zip(ours, theirs, strict=True):
        left = [one.token for one in mine.seen.logprobs] if with_tokens else list(mine.seen.text)
        right = [one.token for one in other.seen.logprobs] if with_tokens else list(other.seen.text)
        common = _common(left, right)
        equal = common == len(left) == len(right)
        identical += equal
        same += common
        total += max(len(left), len(right))
        if not equal and len(places) < 10:
            places.append(f"{mine.where}, after {common}: {left[common : common + 1]} and {right[common : common + 1]}")
        if with_tokens:
            pairs = zip(mine.seen.logprobs[:common], other.seen.logprobs[:common], strict=True)
            differences += [abs(a.logprob - b.logprob) for a, b in pairs]
    return Agreement(
        answers=len(ours),
        identical=identical / len(ours) if ours else 1.0,
        before_difference=same / total if total else 1.0,
        unit="tokens" if with_tokens else "characters",
        compared_logprobs=len(differences),
        mean_logprob_difference=sum(differences) / len(differences) if differences else None,
        largest_logprob_difference=max(differences, default=None),
        first_differences=tuple(places),
    )


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))


def _text(prompt: TextPrompt | BlocksPrompt, texts: BlockTexts) -> str:
    return prompt.text if isinstance(prompt, TextPrompt) else texts.text(prompt)


def _without_tools(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        Message("user", f"Tool result:\n{message.content}") if message.role == "tool" else message
        for message in messages
    )
