"""Which values reach which part of a prompt, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..findings import Severity
from . import ir, sinks
from .cache_markers import refused_markers
from .frames import Scope
from .sinks import Sink
from .usage_sums import misread_usage
from .values import VOLATILE_KINDS, Kind, Mark, Param, Value
from .verdicts import CodeHit, judge_mark

_CONTENT = ("content", "parts", "text")
_BODY_KEYS = ("model", "messages", "contents", "input", "prompt", "max_tokens")
_FROZEN = VOLATILE_KINDS - {Kind.LISTING}
Returns = Callable[[ir.Def | ir.Lambda], Value]


class Reach:
    """Collects hits. `returns` gives what a function returns, for functions that are given where text is wanted."""

    def __init__(self, scope: Scope, imports: dict[str, str], returns: Returns, *, ordered_sets: bool) -> None:
        self._scope = scope
        self._imports = imports
        self._returns = returns
        self._ordered_sets = ordered_sets
        self._hits: dict[tuple[str, int], CodeHit] = {}
        self._slots: set[str] = set()  # names of the placeholders in system texts

    def hits(self) -> list[CodeHit]:
        """All hits, in the order of lines, but for those of a value that was one before it was handed on: of a system
        text that is made in a function and sent in another, the making is the cause and the place of the repair."""
        kept = (hit for hit in self._hits.values() if not self._was_one(hit))
        return sorted(kept, key=lambda hit: (hit.node.line, hit.rule))

    def _was_one(self, hit: CodeHit) -> bool:
        return any(
            before.rule == hit.rule
            and before.origin is hit.origin
            and before.severity >= hit.severity
            and before.node.start in hit.passed
            and before.node is not hit.node
            for before in self._hits.values()
        )

    def hit(self, hit: CodeHit) -> None:
        """Keep the worst hit of a rule on a line, of equal ones the first."""
        key = (hit.rule, hit.node.line)
        known = self._hits.get(key)
        if known is None or hit.severity > known.severity:
            self._hits[key] = hit

    def reach(self, value: Value, sink: Sink) -> None:
        """A value becomes a part of a prompt."""
        if value.definition is not None:
            value = self._returns(value.definition)
        if sink is Sink.SYSTEM and value.text:
            self._slots.update(sinks.placeholders(value.text))
        for piece in value.pieces:
            if isinstance(piece, Param):
                self._scope.frame.reached.setdefault(piece.name, set()).add(sink)
            elif isinstance(piece, Mark):
                hit = judge_mark(piece, value, sink)
                if hit:
                    self.hit(hit)

    def named(self, target: ir.Node, value: Value) -> None:
        """`system_prompt = …` in a function, `kwargs["system"] = …`, `const systemPrompt = () => …`."""
        if isinstance(target, ir.Index):
            key = target.key.text if isinstance(target.key, ir.Const) else None
            if key in sinks.SYSTEM_KEYWORDS:
                self.reach(value, Sink.SYSTEM)
            return
        name = target.name if isinstance(target, ir.Attr) else target.id if isinstance(target, ir.Name) else ""
        inside = self._scope.frame.definition is not None or isinstance(value.definition, ir.Lambda)
        if name and inside and sinks.SYSTEM_NAME.match(name):
            self.reach(value, Sink.SYSTEM)

    def mapping(self, node: ir.DictExpr, values: list[tuple[str | None, Value]], joined: Value) -> None:
        """A message, a tool's definition, or the body of a request."""
        role = sinks.role_of(node)
        is_body = any(key in _BODY_KEYS for key, _ in node.items)
        for key, value in values:
            sink = self._sink_of_key(key, role, is_body)
            if sink is not None:
                self.reach(value, sink)
        if sinks.is_tool_definition(node):
            self.reach(joined, Sink.TOOLS)

    @staticmethod
    def _sink_of_key(key: str | None, role: str | None, is_body: bool) -> Sink | None:
        if role in sinks.SYSTEM_ROLES and key in _CONTENT:
            return Sink.SYSTEM
        if role in ("user", "human") and key in _CONTENT:
            return Sink.USER_TURN
        if role == "assistant" and key in ("tool_calls", "function_call", "arguments", "toolCalls"):
            return Sink.ARGUMENTS
        if role in ("assistant", "ai") and key in _CONTENT:
            return Sink.ANSWER
        if key in ("image_url", "fileUri", "file_uri", "url", "uri"):
            return Sink.IMAGE
        if key in sinks.KEY_KEYWORDS:
            return Sink.CACHE_KEY
        if is_body and key in sinks.SYSTEM_KEYWORDS:
            return Sink.SYSTEM
        return Sink.TOOL_LIST if is_body and key in sinks.TOOL_KEYWORDS else None

    def call(self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
        """What a call's arguments become."""
        if self._scope.frame.is_once and sinks.is_constructor(name):  # what it is given stays as it is
            args = [value.without(_FROZEN) for value in args]
            kwargs = {key: value.without(_FROZEN) for key, value in kwargs.items()}
        self._message_object(node, name, args, kwargs)
        refused = refused_markers(node) if sinks.LLM_CALL.search(name) else None
        if refused is not None:
            self.hit(CodeHit("PL606", Severity.ERROR, refused, node))
        for key, value in kwargs.items():
            if key in sinks.SYSTEM_KEYWORDS:
                self.reach(value, Sink.SYSTEM)
            elif key in sinks.TOOL_KEYWORDS:
                self.reach(value, Sink.TOOL_LIST)
                if sinks.LLM_CALL.search(name):  # elsewhere a set of tools is a filter
                    self._printed_set(node.kwargs[key], value)
            elif key in sinks.KEY_KEYWORDS:
                self.reach(value, Sink.CACHE_KEY)
            elif key in sinks.MESSAGE_KEYWORDS and sinks.LLM_CALL.search(name):
                self.reach(value, Sink.MESSAGES)
                self._side_call(node, value)
        goes_on = sinks.POSITIONAL_CALL.search(name) and not sinks.SIDE_CALL.search(name)
        if args and goes_on and any(m.kind is Kind.WINDOW for m in args[0].marks):
            self.reach(args[0], Sink.MESSAGES)
        if sinks.SYSTEM_CALLS.search(name):
            for value in args[:1] + [kwargs[k] for k in ("content", "text") if k in kwargs]:
                self.reach(value, Sink.SYSTEM)
        self._second_tokenisation(node, name, args)

    def _message_object(self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
        """`ChatMessage(role="system", content=…)`, `Message("system", …)`, `dict(role=…, content=…)`."""
        role = sinks.role_named(node.kwargs.get("role"))
        if role is not None:
            for key, value in kwargs.items():
                sink = self._sink_of_key(key, role, is_body=False)
                if sink is not None:
                    self.reach(value, sink)
        elif len(args) == 2 and name.endswith("Message") and sinks.role_named(node.args[0]) in sinks.SYSTEM_ROLES:
            self.reach(args[1], Sink.SYSTEM)

    def fills(self, name: str) -> bool:
        """Whether a call of this name may give values to placeholders of a system text that was seen."""
        return bool(self._slots) and bool(sinks.FILLS.search(name))

    def filled(self, given: dict[str, Value]) -> None:
        """`prompt.partial(now=…)`, `chain.invoke({"now": …})`: the values of placeholders of a system text."""
        for key, value in given.items():
            if key in self._slots:
                self.reach(value, Sink.SYSTEM)

    def _printed_set(self, node: ir.Node, value: Value) -> None:
        if value.is_set and not self._ordered_sets:
            self.reach(value.marked(Kind.UNORDERED, node), Sink.TOOL_LIST)

    def _side_call(self, node: ir.Call, value: Value) -> None:
        """A flattened conversation in a call of its own."""
        if any(m.kind is Kind.TRANSCRIPT for m in value.marks):
            message = "the call repeats a conversation's text and shares no prefix with it"
            self.hit(CodeHit("PL406", Severity.WARNING, message, node))

    def _second_tokenisation(self, node: ir.Call, name: str, args: list[Value]) -> None:
        last = name.rsplit(".", 1)[-1].lower()
        tokenises = (
            "tokenizer" in last or (last in ("encode", "__call__") and "token" in name.lower()) or last == "processor"
        )
        if not tokenises or "add_special_tokens" in node.kwargs:
            return
        if any(m.kind is Kind.RENDERED for value in args[:1] for m in value.marks):
            message = "a rendered prompt is tokenised with special tokens a second time"
            self.hit(CodeHit("PL705", Severity.ERROR, message, node))

    def stored_as_completed(self, node: ir.Call, args: list[Value]) -> None:
        """A result that is stored inside a loop over completions."""
        results = [a for a, v in zip(node.args, args, strict=True) if v.is_messages or _is_result(a)]
        for own, marks in self._scope.frame.loops:
            for mark in marks:
                if results and mark.kind is Kind.COMPLETION and ir.dotted(node.func) not in own:
                    self.hit(CodeHit("PL204", Severity.WARNING, "results are stored in completion order", mark.origin))

    def sequence(self, node: ir.Seq, values: list[Value], joined: Value) -> Value:
        """A list of messages, or a pair of role and text; the value with what it turned out to be."""
        is_pair = node.is_tuple or self._ordered_sets  # JavaScript has no tuples
        if is_pair and len(node.items) == 2 and isinstance(node.items[0], ir.Const):
            if node.items[0].text in sinks.SYSTEM_ROLES:
                self.reach(values[1], Sink.SYSTEM)
                return replace(joined, is_messages=True)
            joined = replace(joined, is_messages=joined.is_messages or node.items[0].text in ("user", "human"))
        if joined.is_messages and not node.is_set:
            self.reach(joined, Sink.MESSAGES)
        return joined

    def usage(self, node: ir.Node) -> None:
        """A sum or a ratio over usage fields."""
        problem = misread_usage(node, self._imports)
        if problem:
            self.hit(CodeHit("PL902", Severity.WARNING, problem, node))


def _is_result(node: ir.Node) -> bool:
    kind = node.get("type") if isinstance(node, ir.DictExpr) else None
    return isinstance(kind, ir.Const) and kind.text == "tool_result"
