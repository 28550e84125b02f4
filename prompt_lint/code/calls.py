"""The value of a call: sources, sanitisers, containers, the module's own functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import ir, sources
from .expressions import Expressions
from .frames import Scope, Summary
from .reach import Reach
from .values import EMPTY, ORDER_KINDS, Kind, Mark, Param, Piece, Text, Value, merged, strung, union

_MUTATORS = {"append", "extend", "insert", "push", "unshift", "add", "appendleft", "concat"}
_CLEARING = {"len", "max", "min", "sum", "any", "all", "bool", "isinstance", "range"}
_READING = {"open", "read_text", "read_bytes", "readFile", "readFileSync", "readTextFile"}  # a name is not a content
_LAST_OF = {"takeRight", "takeLast"}
_WINDOW = frozenset({Kind.WINDOW})
_NUMBERS = {"int", "float", "round", "floor", "trunc"}
_SORTING = {"sorted", "sort", "toSorted", "sortBy", "orderBy", "natsorted", "sort_values"}
_OF_SETS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
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
Outside = Callable[[str], Summary | None]
Analyse = Callable[[ir.Def | ir.Lambda], Summary]


class Calls:
    """Evaluates calls. `analyse` gives a function's summary, `outside` that of an imported one."""

    def __init__(
        self,
        scope: Scope,
        reach: Reach,
        imports: dict[str, str],
        analyse: Analyse,
        outside: Outside,
        *,
        ordered_sets: bool,
    ) -> None:
        self._scope = scope
        self._reach = reach
        self._imports = imports
        self._analyse = analyse
        self._outside = outside
        self._ordered_sets = ordered_sets

    def value_of(self, node: ir.Call, expressions: Expressions) -> Value:
        """The value of a call, and what it does to prompts and containers."""
        name = ("new " if node.is_new else "") + ir.dotted(node.func)
        last = name.rsplit(".", 1)[-1]
        args = [expressions.value_of(a) for a in node.args]
        kwargs = {key: expressions.value_of(value) for key, value in node.kwargs.items()}
        receiver = expressions.value_of(node.func.base) if isinstance(node.func, ir.Attr) else EMPTY
        self._reach.call(node, name, args, kwargs)
        if self._reach.fills(name):
            self._reach.filled({**kwargs, **_entries(node, args)})
        kind = sources.kind_of_call(name, node, self._imports)
        if sources.is_of_address(name, self._imports) and self._is_builtin(name):
            kind = Kind.RANDOM_ID
        special = self._special(node, last, args, kwargs, receiver, expressions)
        if special is not None:
            return special
        if kind is not None and not self._is_seeded(node, kind):
            return self._from_source(node, kind, name, union(receiver, *args))
        self._callbacks([*args, *kwargs.values()])
        resolved = self._resolve(node, name, args, kwargs, receiver)
        if resolved is not None:
            return resolved
        passed_on = _passed_on(node, last, [receiver, *args, *kwargs.values()])
        if isinstance(node.func, ir.Name) and node.func.id in self._scope.classes:
            return replace(passed_on, instance=node.func.id)
        return passed_on

    def _is_builtin(self, name: str) -> bool:
        """A name that Python has and that this module does not define."""
        return not self._ordered_sets and self._scope.lookup(name).definition is None

    def _callbacks(self, values: list[Value]) -> None:
        """Functions given to a call are run by it."""
        for value in values:
            if isinstance(value.definition, ir.Lambda):
                self._analyse(value.definition)

    def _special(
        self,
        node: ir.Call,
        last: str,
        args: list[Value],
        kwargs: dict[str, Value],
        receiver: Value,
        expressions: Expressions,
    ) -> Value | None:
        """Calls whose effect on values is known."""
        if last in _SORTING:
            cleared = union(receiver, *args).without(ORDER_KINDS)
            drawn = self._random_key([*args, *kwargs.values()])
            if drawn is not None:
                cleared = cleared.marked(Kind.SAMPLED, drawn)
            if isinstance(node.func, ir.Attr) and not node.args:  # `names.sort()` orders in place
                self._scope.store(node.func.base, cleared)
            return cleared
        if last in _CLEARING or last in _READING:
            return EMPTY
        if last in _NUMBERS and args:
            return Value(union(*args).marks)
        of_set = self._of_sets(node, last, args, receiver)
        if of_set is not None:
            return of_set
        if last in _MUTATORS and isinstance(node.func, ir.Attr):
            self._reach.stored_as_completed(node, args)
            self._scope.extend(node.func.base, self._scope.in_loops(union(*args), ir.dotted(node.func.base)))
            return union(receiver, *args)
        if last in ("dumps", "stringify", "dump_json", "serialize"):
            return _dumps(node, args, kwargs)
        if last in ("trim_messages", "trimMessages"):
            strategy = node.kwargs.get("strategy")
            keeps_last = not (isinstance(strategy, ir.Const) and strategy.text == "first")
            return union(*args).marked(Kind.WINDOW, node) if keeps_last else union(*args)
        if last in _LAST_OF and len(node.args) == 2:
            is_window = sources.MESSAGES_LIKE.match(ir.dotted(node.args[0]).rsplit(".", 1)[-1])
            return args[0].marked(Kind.WINDOW, node) if is_window else args[0]
        if last in _JOINERS and isinstance(node.func, ir.Attr):
            printed = [expressions.printed(a, v) for a, v in zip(node.args, args, strict=True)]
            if last == "join":
                return strung([*printed, receiver], node)
            return merged([receiver, *printed, *kwargs.values()], node).without(_WINDOW)  # a text, no messages
        return None

    def _random_key(self, values: list[Value]) -> ir.Node | None:
        """The random number by which something is sorted: `sort(() => Math.random() - 0.5)`."""
        keys = [self._analyse(v.definition).returns for v in values if isinstance(v.definition, ir.Lambda)]
        marks = (m for key in keys for m in key.marks if m.kind is Kind.RANDOM_ID)
        return next((m.origin for m in marks if sources.is_random_number(m.origin)), None)

    def _of_sets(self, node: ir.Call, last: str, args: list[Value], receiver: Value) -> Value | None:
        """Sets that are made, combined, or turned into a sequence in hash order."""
        if self._ordered_sets:
            return None
        if last in ("set", "frozenset"):
            return replace(union(*args).without(ORDER_KINDS), is_set=True)
        if last in ("list", "tuple", "enumerate", "iter") and args and args[0].is_set:
            return replace(args[0].marked(Kind.UNORDERED, node), is_set=False)
        if last in _OF_SETS and receiver.is_set:
            return replace(union(receiver, *args), is_set=True)
        return None

    def _from_source(self, node: ir.Call, kind: Kind, name: str, inputs: Value) -> Value:
        if kind is Kind.CLOCK and "strftime" in name and node.args:
            spec = node.args[0]
            if isinstance(spec, ir.Const) and spec.text and not sources.has_time(spec.text):
                kind = Kind.DATE
        if kind is Kind.SAMPLED and sources.draws_characters(node):
            kind = Kind.RANDOM_ID
        if kind is Kind.SAMPLED and name.endswith("shuffle") and node.args:
            self._scope.extend(node.args[0], EMPTY.marked(kind, node))
        if kind in ORDER_KINDS:
            return Value((Mark(kind, node, node),))
        kept = tuple(p for p in inputs.pieces if isinstance(p, Text)) if kind is Kind.SAMPLED else ()
        return Value((Mark(kind, node, node), *kept))

    def _is_seeded(self, node: ir.Call, kind: Kind) -> bool:
        """`random.Random(7).sample(…)`, `rng.sample(…)` of such a generator, or `random.seed(7)` earlier on."""
        if kind not in (Kind.SAMPLED, Kind.RANDOM_ID):
            return False
        base = node.func.base if isinstance(node.func, ir.Attr) else None
        if isinstance(base, ir.Call) and base.args:
            return True
        if base is not None and ir.dotted(base) in self._scope.seeded:
            return True
        return any(frame.is_seeded for frame in self._scope.frames) and ir.dotted(node.func).startswith(
            ("random.", "np.")
        )

    def _resolve(
        self, node: ir.Call, name: str, args: list[Value], kwargs: dict[str, Value], receiver: Value
    ) -> Value | None:
        last = name.rsplit(".", 1)[-1]
        if last == "seed" and node.args:
            self._scope.frame.is_seeded = True
        definition = self._definition(node, last, receiver)
        if definition is None:
            outside = self._outside(self._imports.get(name.split(".")[0], ""))
            return self._apply(outside, [], args, kwargs) if outside else None
        params = definition.params
        if params[:1] in (["self"], ["cls"]):
            params = params[1:]
        return self._apply(self._analyse(definition), params, args, kwargs)

    def _definition(self, node: ir.Call, last: str, receiver: Value) -> ir.Def | ir.Lambda | None:
        if receiver.instance is not None:
            return self._scope.classes[receiver.instance].get(last)
        if isinstance(node.func, ir.Name):
            return self._scope.lookup(node.func.id).definition
        own = isinstance(node.func, ir.Attr) and isinstance(node.func.base, ir.Name)
        if own and ir.dotted(node.func).split(".")[0] in ("self", "this", "cls"):
            return self._scope.own_method(last)
        return None

    def _apply(self, summary: Summary, params: list[str], args: list[Value], kwargs: dict[str, Value]) -> Value:
        bound = {**dict(zip(params, args, strict=False)), **kwargs}
        for name, reached in summary.reached.items():
            for sink in reached:
                if name in bound:
                    self._reach.reach(bound[name], sink)
        pieces: list[Piece] = []
        for piece in summary.returns.pieces:
            if isinstance(piece, Param) and piece.name in bound:
                pieces.extend(bound[piece.name].pieces)
            else:
                pieces.append(piece)
        return replace(summary.returns, pieces=tuple(pieces))


def _entries(node: ir.Call, args: list[Value]) -> dict[str, Value]:
    """Values under the keys of the literal dict that a call gets first."""
    is_literal = bool(node.args) and isinstance(node.args[0], ir.DictExpr)
    return dict(args[0].entries) if is_literal else {}


def _passed_on(node: ir.Call, last: str, values: list[Value]) -> Value:
    """What a call of which nothing is known makes of its inputs."""
    if last[:1].isupper() or len(node.args) + len(node.kwargs) > 4:
        return EMPTY  # an object made of many things
    joined = union(*values)
    refined = sources.refined_clock(last, node)
    if refined and any(m.kind is Kind.CLOCK for m in joined.marks):
        return joined.of_kind(Kind.CLOCK, refined)
    return Value(joined.pieces)


def _dumps(node: ir.Call, args: list[Value], kwargs: dict[str, Value]) -> Value:
    first = node.args[0] if node.args else None
    value = replace(union(*args), definition=None, text=None)
    sorts = "sort_keys" in kwargs or len(node.args) > 3
    literal = isinstance(first, ir.DictExpr | ir.Const | ir.Seq)
    return value if sorts or literal or first is None else value.marked(Kind.JSON_DUMP, node)
