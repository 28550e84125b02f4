"""Data flow over the small form: which origins reach which part of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..findings import Severity
from . import ir, sinks, sources
from .loops import loop_marks, touched_containers
from .sinks import Sink
from .usage_sums import misread_usage
from .values import EMPTY, ORDER_KINDS, VOLATILE_KINDS, Kind, Mark, Param, Piece, Text, Value, either, merged, union
from .verdicts import CodeHit, judge_mark

_COMPLETION = frozenset({Kind.COMPLETION})
_WINDOW = frozenset({Kind.WINDOW})
_PER_ELEMENT = ORDER_KINDS | {Kind.WINDOW}
_INITIALISERS = {"__init__", "constructor", "__post_init__", "setUp", "initialize"}
_MUTATORS = {"append", "extend", "insert", "push", "unshift", "add", "appendleft", "concat"}
_CLEARING = {"len", "max", "min", "sum", "any", "all", "bool", "int", "isinstance", "hash", "range"}
_SORTING = {"sorted", "sort", "toSorted", "sortBy", "orderBy", "natsorted", "sort_values"}
_JOINERS = {
    "join",
    "format",
    "replace",
    "strip",
    "concat",
    "dedent",
    "render",
    "substitute",
    "safe_substitute",
    "padEnd",
}


@dataclass(slots=True)
class Summary:
    """What a function returns, and which of its parameters reach a prompt."""

    returns: Value = EMPTY
    reached: dict[str, set[tuple[Sink, int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Frame:
    """One function (or the module) being evaluated."""

    definition: ir.Def | ir.Lambda | None
    names: dict[str, Value]
    returned: list[Value] = field(default_factory=list)
    loops: list[tuple[frozenset[str], tuple[Mark, ...]]] = field(default_factory=list)
    reached: dict[str, set[tuple[Sink, int]]] = field(default_factory=dict)

    @property
    def is_once(self) -> bool:
        """Values made here live as long as the module or the object."""
        return self.definition is None or (
            isinstance(self.definition, ir.Def) and (self.definition.cached or self.definition.name in _INITIALISERS)
        )


class Flow:
    """Evaluates one module. `outside` resolves imported functions to their definitions' summaries."""

    def __init__(
        self, module: ir.Module, *, ordered_sets: bool, outside: Callable[[str], Summary | None] | None = None
    ) -> None:
        self._module = module
        self._ordered_sets = ordered_sets  # true for JavaScript, whose sets keep the order of insertion
        self._outside = outside or (lambda name: None)
        self._globals: dict[str, Value] = {}
        self._attributes: dict[str, Value] = {}
        self._functions: dict[str, ir.Def] = {}
        self._summaries: dict[int, Summary] = {}
        self._hits: dict[tuple[str, int], CodeHit] = {}
        self._frames: list[_Frame] = []
        self._active: set[int] = set()

    def run(self) -> list[CodeHit]:
        """All hits, in the order of lines."""
        self._collect(self._module.body)
        self._frames.append(_Frame(None, self._globals))
        self._statements(self._module.body)
        for definition in list(self._functions.values()):
            if id(definition) not in self._summaries:
                self._analyse(definition)
        if any(value.marks for value in self._attributes.values()):  # methods above may read what methods below set
            for definition in list(self._functions.values()):
                self._analyse(definition)
        self._frames.pop()
        return sorted(self._hits.values(), key=lambda hit: (hit.node.line, hit.rule))

    def summary_of(self, name: str) -> Summary | None:
        """The summary of a function of this module, after `run`."""
        definition = self._functions.get(name)
        return self._summaries.get(id(definition)) if definition else None

    # -- definitions

    def _collect(self, body: list[ir.Node]) -> None:
        for node in body:
            if isinstance(node, ir.Def):
                self._functions.setdefault(node.name, node)
                self._collect(node.body)
            elif isinstance(node, ir.ClassDef | ir.Block | ir.For):
                self._collect(node.body)

    def _analyse(self, definition: ir.Def | ir.Lambda) -> Summary:
        if id(definition) in self._active or len(self._active) > 24:
            return self._summaries.get(id(definition), Summary())
        self._active.add(id(definition))
        frame = _Frame(definition, {name: _parameter(name) for name in definition.params})
        self._frames.append(frame)
        self._statements(definition.body)
        self._frames.pop()
        self._active.discard(id(definition))
        returns = either(frame.returned)
        if isinstance(definition, ir.Def):
            if definition.cached:
                returns = returns.without(VOLATILE_KINDS)
            if sinks.SYSTEM_NAME.match(definition.name):
                self._reach(returns, Sink.SYSTEM, frame)
        summary = Summary(returns, frame.reached)
        self._summaries[id(definition)] = summary
        return summary

    # -- statements

    def _statements(self, body: list[ir.Node]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ir.Node) -> None:
        match node:
            case ir.Assign():
                self._assign(node)
            case ir.Do():
                self._eval(node.value)
            case ir.Return():
                value = self._eval(node.value)
                self._frames[-1].returned.append(self._in_loops(value) if node.is_yield else value)
            case ir.For():
                self._loop(node)
            case ir.Block() | ir.ClassDef():
                self._statements(node.body)
            case ir.Def():
                self._frames[-1].names[node.name] = Value(definition=node)
            case _:
                self._eval(node)

    def _assign(self, node: ir.Assign) -> None:
        value = self._eval(node.value)
        frame = self._frames[-1]
        if frame.is_once:
            value = value.without(VOLATILE_KINDS - {Kind.LISTING})
        for target in node.targets:
            name = ir.dotted(target)
            if node.augmented:
                before = self._lookup(name)
                value = self._in_loops(merged([before, value], node), name)
            if isinstance(target, ir.Index):
                self._extend(target.base, self._in_loops(value, name).without(_COMPLETION))
                self._keyed(target, value)
            elif isinstance(target, ir.Seq):
                self._destructure(target, value)
            else:
                self._store(target, value)
                self._named_sink(target, value)

    def _destructure(self, target: ir.Seq, value: Value) -> None:
        """`a, b = f()`: item by item where the tuple is known; what is not known brings nothing along."""
        known = value.items if len(value.items) == len(target.items) else ()
        for i, item in enumerate(target.items):
            self._store(item, known[i] if known else EMPTY)

    def _keyed(self, target: ir.Index, value: Value) -> None:
        """`kwargs["system"] = …`."""
        if isinstance(target.key, ir.Const) and target.key.text in sinks.SYSTEM_KEYWORDS:
            self._reach(value, Sink.SYSTEM, self._frames[-1])

    def _named_sink(self, target: ir.Node, value: Value) -> None:
        name = target.name if isinstance(target, ir.Attr) else target.id if isinstance(target, ir.Name) else ""
        if name and sinks.SYSTEM_NAME.match(name) and self._frames[-1].definition is not None:
            self._reach(value, Sink.SYSTEM, self._frames[-1])

    def _store(self, target: ir.Node, value: Value) -> None:
        if isinstance(target, ir.Name):
            self._frames[-1].names[target.id] = value
        elif isinstance(target, ir.Attr):
            name = ir.dotted(target)
            kept = self._attributes.get(name)
            self._attributes[name] = union(kept, value) if kept else value

    def _loop(self, node: ir.For) -> None:
        iterated = self._eval(node.iter)
        marks = loop_marks(node.iter, iterated, ordered_sets=self._ordered_sets)
        frame = self._frames[-1]
        element = replace(iterated.without(_PER_ELEMENT), is_set=False, definition=None, text=None)
        for name in node.targets:
            frame.names[name] = _element(name, element)
        frame.loops.append((touched_containers(node.body), marks))
        self._statements(node.body)
        frame.loops.pop()

    def _in_loops(self, value: Value, name: str | None = None) -> Value:
        """Something gathered inside a loop takes over the loop's order."""
        for own, marks in self._frames[-1].loops:
            if name is None or name not in own:
                for mark in marks:
                    if mark not in value.pieces:
                        value = replace(value, pieces=(mark, *value.pieces))
        return value

    # -- expressions

    def _eval(self, node: ir.Node) -> Value:
        match node:
            case ir.Const():
                return Value((Text(len(node.text)),), text=node.text) if node.text else EMPTY
            case ir.Name():
                return self._lookup(node.id)
            case ir.Attr():
                return self._attribute(node)
            case ir.Concat():
                return self._concat(node)
            case ir.Formatted():
                return self._formatted(node)
            case ir.Sum():
                return self._sum(node)
            case ir.Ratio() | ir.Compare():
                self._usage(node)
                return union(self._eval(node.left), self._eval(node.right)) if isinstance(node, ir.Ratio) else EMPTY
            case ir.Call():
                return self._call(node)
            case ir.DictExpr():
                return self._dict(node)
            case ir.Seq():
                return self._sequence(node)
            case ir.Comprehension():
                return self._comprehension(node)
            case ir.Slice():
                return self._slice(node)
            case ir.Index():
                self._eval(node.key)
                return replace(self._eval(node.base), is_messages=False, definition=None)
            case ir.Group():
                return union(*(self._eval(p) for p in node.parts))
            case ir.Lambda():
                return Value(definition=node)
            case ir.Assign() | ir.For() | ir.Return():
                self._statement(node)
                return EMPTY
            case _:
                return EMPTY

    def _lookup(self, name: str) -> Value:
        for names in (self._frames[-1].names, *(f.names for f in reversed(self._frames[:-1]))):
            if name in names:
                return names[name]
        if name in self._attributes:
            return self._attributes[name]
        definition = self._functions.get(name)
        return Value(definition=definition) if definition else EMPTY

    def _attribute(self, node: ir.Attr) -> Value:
        name = ir.dotted(node)
        if name in self._attributes and isinstance(node.base, ir.Name):
            return self._attributes[name]
        base = self._eval(node.base)
        refined = sources.refined_clock(node.name, None)
        if refined and any(m.kind is Kind.CLOCK for m in base.marks):
            return _with_kind(base, Kind.CLOCK, refined)
        if isinstance(node.base, ir.Name) and sources.USER_LIKE.match(node.base.id):
            return replace(base, pieces=(), definition=None).marked(Kind.USER, node)
        if not base.pieces or len(base.pieces) > 2:
            return EMPTY  # a field of an object made of many things
        return replace(base, is_messages=False, is_set=False, definition=None, text=None, items=())

    def _concat(self, node: ir.Concat) -> Value:
        return merged([self._as_text(part, self._eval(part)) for part in node.parts], node).without(_WINDOW)

    def _as_text(self, node: ir.Node, value: Value) -> Value:
        """A set that is printed is printed in hash order."""
        if value.is_set and not self._ordered_sets:
            value = replace(value.marked(Kind.UNORDERED, node), is_set=False)
        return value

    def _formatted(self, node: ir.Formatted) -> Value:
        value = self._as_text(node.value, self._eval(node.value))
        if node.spec and any(m.kind is Kind.CLOCK for m in value.marks) and not sources.has_time(node.spec):
            value = _with_kind(value, Kind.CLOCK, Kind.DATE)
        named = isinstance(node.value, ir.Name) and sources.FUNCTION_LIKE.match(node.value.id)
        if named and node.conversion == "r" and not self._ordered_sets:
            value = value.marked(Kind.ADDRESS, node)
        return value if value.pieces else Value((Param("?"),))

    def _sum(self, node: ir.Sum) -> Value:
        self._usage(node)
        left, right = self._eval(node.left), self._eval(node.right)
        both = merged([self._as_text(node.left, left), self._as_text(node.right, right)], node)
        if both.is_messages:
            self._reach(both, Sink.MESSAGES, self._frames[-1])
        return both

    def _usage(self, node: ir.Node) -> None:
        problem = misread_usage(node, self._module.imports)
        if problem:
            self._hit(CodeHit("PL902", Severity.WARNING, problem, node))

    def _dict(self, node: ir.DictExpr) -> Value:
        values = [(key, self._eval(value)) for key, value in node.items]
        frame = self._frames[-1]
        role = sinks.role_of(node)
        for key, value in values:
            if role in sinks.SYSTEM_ROLES and key in ("content", "parts", "text"):
                self._reach(self._called(value), Sink.SYSTEM, frame)
            elif role in ("user", "human") and key in ("content", "parts", "text"):
                self._reach(value, Sink.USER_TURN, frame)
            elif role == "assistant" and key in ("tool_calls", "function_call", "arguments", "toolCalls"):
                self._reach(value, Sink.ARGUMENTS, frame)
            elif key in ("image_url", "fileUri", "file_uri", "url", "uri"):
                self._reach(value, Sink.IMAGE, frame)
            elif key in sinks.SYSTEM_KEYWORDS and self._passed_on(node):
                self._reach(self._called(value), Sink.SYSTEM, frame)
            elif key in sinks.KEY_KEYWORDS:
                self._reach(value, Sink.CACHE_KEY, frame)
            elif key in sinks.TOOL_KEYWORDS and self._passed_on(node):
                self._reach(value, Sink.TOOL_LIST, frame)
        joined = union(*(v for _, v in values))
        if sinks.is_tool_definition(node):
            self._reach(joined, Sink.TOOLS, frame)
        return replace(joined, is_messages=role is not None, is_set=False)

    @staticmethod
    def _passed_on(node: ir.DictExpr) -> bool:
        """The dict looks like the body of a request: it names a model or messages."""
        return any(key in ("model", "messages", "contents", "input", "prompt", "max_tokens") for key, _ in node.items)

    def _completion(self, node: ir.Call, args: list[Value]) -> None:
        """A result that is stored inside a loop over completions."""
        results = [a for a, v in zip(node.args, args, strict=True) if v.is_messages or _is_result(a)]
        for own, marks in self._frames[-1].loops:
            for mark in marks:
                if results and mark.kind is Kind.COMPLETION and ir.dotted(node.func) not in own:
                    self._hit(CodeHit("PL204", Severity.WARNING, "results are stored in completion order", mark.origin))

    def _sequence(self, node: ir.Seq) -> Value:
        values = [self._eval(item) for item in node.items]
        joined = union(*values)
        frame = self._frames[-1]
        if node.is_tuple and len(node.items) == 2 and isinstance(node.items[0], ir.Const):
            if node.items[0].text in sinks.SYSTEM_ROLES:
                self._reach(values[1], Sink.SYSTEM, frame)
                return replace(joined, is_messages=True)
            joined = replace(joined, is_messages=joined.is_messages or node.items[0].text in ("user", "human"))
        if joined.is_messages and not node.is_set:
            self._reach(joined, Sink.MESSAGES, frame)
        items = tuple(values) if node.is_tuple else ()
        return replace(joined, is_set=node.is_set and len(node.items) > 1, text=None, items=items)

    def _comprehension(self, node: ir.Comprehension) -> Value:
        frame = self._frames[-1]
        marks: list[Mark] = []
        flattens = False
        for names, source in node.loops:
            iterated = self._eval(source)
            marks += loop_marks(source, iterated, ordered_sets=self._ordered_sets)
            flattens = flattens or _is_messages_like(source)
            element = replace(iterated.without(_PER_ELEMENT), is_set=False, definition=None, text=None)
            for name in names:
                frame.names[name] = _element(name, element)
        for condition in node.filters:
            self._eval(condition)
        value = self._eval(node.element)
        if flattens and _prints_message(node.element):
            value = value.marked(Kind.TRANSCRIPT, node)
        if node.is_set:
            return replace(value, is_set=True)
        kept = [m for m in marks if m not in value.pieces]
        return replace(value, pieces=(*kept, *value.pieces), is_set=False, text=None)

    def _slice(self, node: ir.Slice) -> Value:
        value = self._eval(node.base)
        name = ir.dotted(node.base).rsplit(".", 1)[-1]
        if node.from_end and node.open_ended and not node.last_only and sources.MESSAGES_LIKE.match(name):
            return value.marked(Kind.WINDOW, node)
        if any(m.kind is Kind.CLOCK for m in value.marks) and not node.from_end and not node.open_ended:
            return _with_kind(value, Kind.CLOCK, Kind.DATE)  # isoformat()[:10]
        return replace(value, definition=None, text=None)

    # -- calls

    def _call(self, node: ir.Call) -> Value:
        name = ("new " if node.is_new else "") + ir.dotted(node.func)
        last = name.rsplit(".", 1)[-1]
        args = [self._eval(a) for a in node.args]
        kwargs = {key: self._eval(value) for key, value in node.kwargs.items()}
        receiver = self._eval(node.func.base) if isinstance(node.func, ir.Attr) else EMPTY
        self._sinks_of_call(node, name, args, kwargs)
        kind = sources.kind_of_call(name, node, self._module.imports)
        special = self._special(node, last, args, kwargs, receiver)
        if special is not None:
            return special
        if kind is not None and not self._is_seeded(node, kind):
            return self._from_source(node, kind, name, union(receiver, *args))
        self._callbacks([*args, *kwargs.values()])
        resolved = self._resolve(node, name, args, kwargs)
        if resolved is not None:
            return resolved
        if last[:1].isupper() or len(args) + len(kwargs) > 4:
            return EMPTY  # an object made of many things
        joined = union(receiver, *args, *kwargs.values())
        refined = sources.refined_clock(last, node)
        if refined and any(m.kind is Kind.CLOCK for m in joined.marks):
            return _with_kind(joined, Kind.CLOCK, refined)
        return replace(joined, definition=None, text=None, is_messages=False)

    def _callbacks(self, values: list[Value]) -> None:
        """Functions given to a call are run by it."""
        for value in values:
            if isinstance(value.definition, ir.Lambda) and id(value.definition) not in self._summaries:
                self._analyse(value.definition)

    def _special(
        self, node: ir.Call, last: str, args: list[Value], kwargs: dict[str, Value], receiver: Value
    ) -> Value | None:
        """Calls whose effect on values is known."""
        if last in _SORTING:
            cleared = union(receiver, *args).without(ORDER_KINDS)
            self._clear(node, cleared)
            return cleared
        if last in _CLEARING:
            return EMPTY
        if last in ("set", "frozenset") and not self._ordered_sets:
            return replace(union(*args).without(ORDER_KINDS), is_set=True)
        if last in ("list", "tuple", "enumerate", "iter") and args and args[0].is_set:
            return replace(args[0].marked(Kind.UNORDERED, node), is_set=False)
        if last in _MUTATORS and isinstance(node.func, ir.Attr):
            self._completion(node, args)
            self._extend(node.func.base, self._in_loops(union(*args), ir.dotted(node.func.base)))
            return union(receiver, *args)
        if last in ("dumps", "stringify", "dump_json", "serialize"):
            return self._dumps(node, args, kwargs)
        if last in _JOINERS and isinstance(node.func, ir.Attr):
            printed = [self._as_text(a, v) for a, v in zip(node.args, args, strict=True)]
            return merged(
                [*printed, *kwargs.values(), receiver] if last == "join" else [receiver, *printed, *kwargs.values()],
                node,
            )
        return None

    def _clear(self, node: ir.Call, cleared: Value) -> None:
        """`names.sort()` orders in place."""
        if isinstance(node.func, ir.Attr) and not node.args:
            self._store(node.func.base, cleared)

    def _dumps(self, node: ir.Call, args: list[Value], kwargs: dict[str, Value]) -> Value:
        first = node.args[0] if node.args else None
        value = replace(union(*args), definition=None, text=None)
        sorts = "sort_keys" in kwargs or len(node.args) > 3
        literal = isinstance(first, ir.DictExpr | ir.Const | ir.Seq)
        return value if sorts or literal or first is None else value.marked(Kind.JSON_DUMP, node)

    def _from_source(self, node: ir.Call, kind: Kind, name: str, inputs: Value) -> Value:
        if kind is Kind.CLOCK and "strftime" in name and node.args:
            spec = node.args[0]
            if isinstance(spec, ir.Const) and spec.text and not sources.has_time(spec.text):
                kind = Kind.DATE
        if kind is Kind.SAMPLED and name.endswith("shuffle") and node.args:
            self._extend(node.args[0], EMPTY.marked(kind, node))
        if kind is Kind.COMPLETION or kind in ORDER_KINDS:
            return Value((Mark(kind, node, node),))
        kept = tuple(p for p in inputs.pieces if isinstance(p, Text)) if kind is Kind.SAMPLED else ()
        return Value((Mark(kind, node, node), *kept))

    def _is_seeded(self, node: ir.Call, kind: Kind) -> bool:
        """`random.Random(7).sample(…)`, or `random.seed(7)` earlier in the same function or module."""
        if kind not in (Kind.SAMPLED, Kind.RANDOM_ID):
            return False
        base = node.func.base if isinstance(node.func, ir.Attr) else None
        if isinstance(base, ir.Call) and base.args:
            return True
        return any("#seeded" in frame.names for frame in self._frames) and ir.dotted(node.func).startswith(
            ("random.", "np.")
        )

    def _resolve(self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        last = name.rsplit(".", 1)[-1]
        if last == "seed" and args is not None and node.args:
            self._frames[-1].names["#seeded"] = EMPTY
        definition = self._definition(node, last)
        if definition is None:
            outside = self._outside(self._module.imports.get(name.split(".")[0], ""))
            return self._apply(outside, [], args, kwargs) if outside else None
        summary = self._summaries.get(id(definition))
        if summary is None or isinstance(definition, ir.Lambda):
            summary = self._analyse(definition)
        params = definition.params
        if params[:1] in (["self"], ["cls"]):
            params = params[1:]
        return self._apply(summary, params, args, kwargs)

    def _definition(self, node: ir.Call, last: str) -> ir.Def | ir.Lambda | None:
        if isinstance(node.func, ir.Name):
            return self._lookup(node.func.id).definition
        if (
            isinstance(node.func, ir.Attr)
            and isinstance(node.func.base, ir.Name)
            and node.func.base.id in ("self", "this", "cls")
        ):
            return self._functions.get(last)
        return None

    def _apply(self, summary: Summary, params: list[str], args: list[Value], kwargs: dict[str, Value]) -> Value:
        bound = {**dict(zip(params, args, strict=False)), **kwargs}
        for name, reached in summary.reached.items():
            for sink, _ in reached:
                if name in bound:
                    self._reach(bound[name], sink, self._frames[-1])
        pieces: list[Piece] = []
        for piece in summary.returns.pieces:
            if isinstance(piece, Param) and piece.name in bound:
                pieces.extend(bound[piece.name].pieces)
            else:
                pieces.append(piece)
        return replace(summary.returns, pieces=tuple(pieces))

    def _called(self, value: Value) -> Value:
        """A function given where text is wanted: what it returns."""
        if value.definition is None:
            return value
        return self._analyse(value.definition).returns

    def _extend(self, target: ir.Node, value: Value) -> None:
        name = ir.dotted(target)
        before = self._lookup(name)
        grown = union(before, value)
        grown = replace(grown, is_set=before.is_set, is_messages=before.is_messages or value.is_messages)
        for names in (self._frames[-1].names, *(f.names for f in reversed(self._frames[:-1]))):
            if name in names:
                names[name] = grown
                return
        if "." in name:
            self._attributes[name] = grown
        else:
            self._frames[-1].names[name] = grown

    def _sinks_of_call(self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
        frame = self._frames[-1]
        for key, value in kwargs.items():
            if key in sinks.SYSTEM_KEYWORDS:
                self._reach(self._called(value), Sink.SYSTEM, frame)
            elif key in sinks.TOOL_KEYWORDS:
                self._reach(value, Sink.TOOL_LIST, frame)
                self._printed_set(node.kwargs[key], value, Sink.TOOL_LIST)
            elif key in sinks.KEY_KEYWORDS:
                self._reach(value, Sink.CACHE_KEY, frame)
            elif key in sinks.MESSAGE_KEYWORDS and sinks.LLM_CALL.search(name):
                self._reach(value, Sink.MESSAGES, frame)
                self._side_call(node, value, kwargs)
        if sinks.SYSTEM_CALLS.search(name):
            for value in args[:1] + [kwargs[k] for k in ("content", "text") if k in kwargs]:
                self._reach(self._called(value), Sink.SYSTEM, frame)
        self._second_tokenisation(node, name, args, kwargs)

    def _printed_set(self, node: ir.Node, value: Value, sink: Sink) -> None:
        if value.is_set and not self._ordered_sets:
            self._reach(value.marked(Kind.UNORDERED, node), sink, self._frames[-1])

    def _side_call(self, node: ir.Call, value: Value, kwargs: dict[str, Value]) -> None:
        """A flattened conversation in a call of its own."""
        if any(m.kind is Kind.TRANSCRIPT for m in value.marks):
            message = "the call repeats a conversation's text and shares no prefix with it"
            self._hit(CodeHit("PL406", Severity.WARNING, message, node))

    def _second_tokenisation(self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
        last = name.rsplit(".", 1)[-1].lower()
        tokenises = (
            "tokenizer" in last or (last in ("encode", "__call__") and "token" in name.lower()) or last == "processor"
        )
        if not tokenises or "add_special_tokens" in node.kwargs:
            return
        if any(m.kind is Kind.RENDERED for value in args[:1] for m in value.marks):
            message = "a rendered prompt is tokenised with special tokens a second time"
            self._hit(CodeHit("PL705", Severity.ERROR, message, node))

    # -- results

    def _reach(self, value: Value, sink: Sink, frame: _Frame) -> None:
        value = self._called(value)
        for piece in value.pieces:
            if isinstance(piece, Param):
                frame.reached.setdefault(piece.name, set()).add((sink, 0))
            elif isinstance(piece, Mark):
                hit = judge_mark(piece, value, sink)
                if hit:
                    self._hit(hit)

    def _hit(self, hit: CodeHit) -> None:
        self._hits.setdefault((hit.rule, hit.node.line), hit)


def _parameter(name: str) -> Value:
    value = Value((Param(name),))
    if sources.USER_FIELD.match(name):
        return Value((Mark(Kind.USER, ir.Node(), ir.Node()),))
    return value


def _element(name: str, value: Value) -> Value:
    return value if value.pieces or value.definition else Value((Param("?"),))


def _with_kind(value: Value, old: Kind, new: Kind) -> Value:
    pieces = tuple(replace(p, kind=new) if isinstance(p, Mark) and p.kind is old else p for p in value.pieces)
    return replace(value, pieces=pieces, definition=None, text=None)


def _is_result(node: ir.Node) -> bool:
    kind = node.get("type") if isinstance(node, ir.DictExpr) else None
    return isinstance(kind, ir.Const) and kind.text == "tool_result"


def _is_messages_like(node: ir.Node) -> bool:
    return bool(sources.MESSAGES_LIKE.match(ir.dotted(node).rsplit(".", 1)[-1]))


def _prints_message(node: ir.Node) -> bool:
    """The text of a message is made from its content (and mostly its role)."""
    if isinstance(node, ir.Concat | ir.Group):
        return any(_prints_message(p) for p in node.parts)
    if isinstance(node, ir.Formatted):
        return _prints_message(node.value)
    if isinstance(node, ir.Sum):
        return _prints_message(node.left) or _prints_message(node.right)
    if isinstance(node, ir.Index):
        return isinstance(node.key, ir.Const) and node.key.text in ("content", "text", "role")
    if isinstance(node, ir.Attr):
        return node.name in ("content", "text", "role")
    if isinstance(node, ir.Call):
        return _prints_message(node.func) or any(isinstance(a, ir.Const) and a.text == "content" for a in node.args)
    return False
