"""Requests that each hold their whole conversation, made into turns: which continues and which waits for which."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..workload.plan import Message, MessagesPrompt, SessionPlan, Turn
from .messages import answer_tokens

Tools = tuple[dict[str, object], ...]


class WholeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was sent. Times are seconds on any clock; None where the trace has none.

    ``delay_s``: seconds to wait before it, where the trace says that instead of times.
    """

    messages: tuple[Message, ...]
    answer: Message | None = None
    output_tokens: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    delay_s: float | None = None
    agent: str = "main"


def turns_of(requests: Sequence[WholeRequest]) -> tuple[Turn, ...]:
    """One turn a request, in the order of their starts (in the order given, where one has none).

    A request continues the earlier one whose messages and answer are the longest beginning of its own; where no answer
    was recorded, what the assistant says next in the later request is taken for it. It waits for that one, and for
    the latest that had ended when it started; requests that overlapped overlap again.
    """
    ordered = list(requests)
    if all(request.started_s is not None for request in ordered):
        ordered.sort(key=lambda request: request.started_s or 0.0)
    tree = _Tree(ordered)
    parents = [tree.continued(index) for index in range(len(ordered))]
    ordered = tree.requests
    turns: list[Turn] = []
    for (index, request), latest in zip(enumerate(ordered), _latest_over(ordered), strict=True):
        continues, prompt = parents[index], request.messages
        if continues is not None:
            prompt = prompt[len(ordered[continues].messages) + 1 :]
        after = tuple(sorted({one for one in (latest, continues) if one is not None}))
        turns.append(
            Turn(
                prompt=MessagesPrompt(prompt),
                continues=continues,
                after=after,
                gap_s=_gap(ordered, index, after),
                output_tokens=request.output_tokens or answer_tokens(request.answer),
                recorded=request.answer,
                agent=request.agent,
            )
        )
    return tuple(turns)


def session_of(
    name: str, found: Sequence[tuple[WholeRequest, Tools]], remarks: Counter[str]
) -> tuple[SessionPlan, float | None]:
    """The session of some requests, each with its tools, and when it began on the trace's clock."""
    requests = [request for request, _ in found]
    start = min((request.started_s for request in requests if request.started_s is not None), default=None)
    tools = next((tools for _, tools in found if tools), ())
    others = sum(1 for _, of_request in found if of_request and of_request != tools)
    if others:
        remarks["changed lists of tools (the session's first is sent)"] += others
    return SessionPlan(session_id=name, turns=turns_of(requests), tools=tools), start


def since_the_first(found: Iterable[tuple[SessionPlan, float | None]]) -> list[SessionPlan]:
    """Sessions with their arrival after the first one's; 0 where the trace does not say when they began."""
    pairs = list(found)
    first = min((start for _, start in pairs if start is not None), default=0.0)
    return [
        plan if start is None else msgspec.structs.replace(plan, arrival_s=round(start - first, 6))
        for plan, start in pairs
    ]


def families(requests: Sequence[WholeRequest]) -> list[list[int]]:
    """Places of requests that belong to one conversation by what they continue, each family in the order given."""
    tree = _Tree(list(requests))
    family_of: list[int] = []
    found: list[list[int]] = []
    for index in range(len(requests)):
        parent = tree.continued(index)
        if parent is None:
            family_of.append(len(found))
            found.append([])
        else:
            family_of.append(family_of[parent])
        found[family_of[index]].append(index)
    return found


class _Tree:
    """All beginnings of all conversations, each message a node; knows which requests ended, or asked, at a node."""

    def __init__(self, requests: list[WholeRequest]) -> None:
        self.requests = requests
        self._children: dict[tuple[int, Message], int] = {}
        self._asked: defaultdict[int, list[int]] = defaultdict(list)  # no answer recorded
        self._ended: defaultdict[int, list[int]] = defaultdict(list)  # with its answer

    def continued(self, index: int) -> int | None:
        """What request ``index`` continues; to be asked of each in turn. Fills in answers that only later ones show."""
        request = self.requests[index]
        best: int | None = None
        node, path = 0, [0]
        for message in request.messages:
            before, node = node, self._child(node, message)
            path.append(node)
            if message.role == "assistant":
                self._answered(before, node, message, index)
        for node in reversed(path[:-1]):
            ended = reversed(self._ended.get(node, ()))
            best = next((one for one in ended if _was_over(self.requests[one], request)), None)
            if best is not None:
                break
        if request.answer is None:
            self._asked[path[-1]].append(index)
        else:
            self._ended[self._child(path[-1], request.answer)].append(index)
        return best

    def _child(self, node: int, message: Message) -> int:
        return self._children.setdefault((node, message), len(self._children) + 1)

    def _answered(self, before: int, node: int, answer: Message, by: int) -> None:
        """Requests that asked where the later one goes on with an answer of the assistant had that answer."""
        waiting = self._asked.get(before)
        if not waiting:
            return
        for one in [one for one in waiting if _was_over(self.requests[one], self.requests[by])]:
            waiting.remove(one)
            known = answer if answer.content or answer.tool_calls else None
            self.requests[one] = msgspec.structs.replace(self.requests[one], answer=known)
            self._ended[node].append(one)


def _was_over(earlier: WholeRequest, later: WholeRequest) -> bool:
    if earlier.ended_s is None or later.started_s is None:
        return True
    return earlier.ended_s <= later.started_s


def _latest_over(requests: Sequence[WholeRequest]) -> Iterator[int | None]:
    """For each request, the earlier one that ended last before it started; in file order where times are missing."""
    running: list[tuple[float, int]] = []
    latest: tuple[float, int] | None = None
    for index, request in enumerate(requests):
        start = float("inf") if request.started_s is None else request.started_s
        while running and running[0][0] <= start:
            done = heapq.heappop(running)
            latest = done if latest is None else max(latest, done)
        yield None if latest is None else latest[1]
        heapq.heappush(running, (float("-inf") if request.ended_s is None else request.ended_s, index))


def _gap(requests: Sequence[WholeRequest], index: int, after: tuple[int, ...]) -> float:
    started = requests[index].started_s
    ends = [end for earlier in after if (end := requests[earlier].ended_s) is not None]
    if requests[index].delay_s is not None and after:
        return requests[index].delay_s or 0.0
    if started is None or not ends:
        return 0.0
    return round(max(0.0, started - max(ends)), 6)
