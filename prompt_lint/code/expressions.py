"""The value of an expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import ir, sources
from .frames import Scope, element
from .loops import loop_marks
from .reach import Reach
from .sinks import Sink, role_of
from .truncation import cuts_by_much
from .values import EMPTY, ORDER_KINDS, Kind, Mark, Param, Text, Value, merged, union

_WINDOW = frozenset({Kind.WINDOW})
PER_ELEMENT = ORDER_KINDS | {Kind.WINDOW}


class Expressions:
    """Evaluates expressions; `call` evaluates calls and `statement` what stands where an expression is wanted."""

    def __init__(
        self,
        scope: Scope,
        reach: Reach,
        call: Callable[[ir.Call], Value],
        statement: Callable[[ir.Node], None],
        returns: Callable[[ir.Def], Value],
        *,
        ordered_sets: bool,
    ) -> None:
        self._scope = scope
        self._reach = reach
        self._ordered_sets = ordered_sets
        self._statement = statement
        self._returns = returns
        self._handlers: dict[type[ir.Node], Callable[[Any], Value]] = {
            ir.Const: _const,
            ir.Name: lambda node: scope.lookup(node.id),
            ir.Attr: self._attribute,
            ir.Concat: self._concat,
            ir.Formatted: self._formatted,
            ir.Sum: self._sum,
            ir.Ratio: self._ratio,
            ir.Compare: self._compare,
            ir.Call: call,
            ir.DictExpr: self._dict,
            ir.Seq: self._sequence,
            ir.Comprehension: self._comprehension,
            ir.Slice: self._slice,
            ir.Index: self._index,
            ir.Group: self._group,
            ir.Lambda: lambda node: Value(definition=node),
            ir.Assign: self._assigned,
            ir.For: self._nested,
            ir.Return: self._nested,
        }

    def value_of(self, node: ir.Node) -> Value:
        """The value of a node; nodes of no interest have none."""
        handler = self._handlers.get(type(node))
        return handler(node) if handler is not None else EMPTY

    def printed(self, node: ir.Node, value: Value) -> Value:
        """A value that is printed; a set is printed in hash order."""
        if value.is_set and not self._ordered_sets:
            value = replace(value.marked(Kind.UNORDERED, node), is_set=False)
        return value

    def _assigned(self, node: ir.Assign) -> Value:
        """An assignment inside an expression has the value that it assigns."""
        self._statement(node)
        return self._scope.lookup(ir.dotted(node.targets[0])) if isinstance(node.targets[0], ir.Name) else EMPTY

    def _nested(self, node: ir.Node) -> Value:
        self._statement(node)
        return EMPTY

    def _attribute(self, node: ir.Attr) -> Value:
        name = ir.dotted(node)
        if isinstance(node.base, ir.Name) and self._scope.knows_attribute(name):
            return self._scope.lookup(name)
        own_property = self._scope.property_of(node)
        if own_property is not None:
            return self._returns(own_property)
        base = self.value_of(node.base)
        refined = sources.refined_clock(node.name, None)
        if refined and any(m.kind is Kind.CLOCK for m in base.marks):
            return base.of_kind(Kind.CLOCK, refined)
        if isinstance(node.base, ir.Name) and sources.USER_LIKE.match(node.base.id):
            return replace(base, pieces=(), definition=None).marked(Kind.USER, node)
        if not base.pieces or len(base.pieces) > 2:
            return EMPTY  # a field of an object made of many things
        return Value(base.pieces)

    def _concat(self, node: ir.Concat) -> Value:
        return merged([self.printed(part, self.value_of(part)) for part in node.parts], node).without(_WINDOW)

    def _formatted(self, node: ir.Formatted) -> Value:
        value = self.printed(node.value, self.value_of(node.value))
        is_date = "%" in node.spec and not sources.has_time(node.spec)  # `.0f` prints a number
        if is_date and any(m.kind is Kind.CLOCK for m in value.marks):
            value = value.of_kind(Kind.CLOCK, Kind.DATE)
        named = isinstance(node.value, ir.Name) and sources.FUNCTION_LIKE.match(node.value.id)
        if named and node.conversion == "r" and not self._ordered_sets:
            value = value.marked(Kind.ADDRESS, node)
        return value if value.pieces else Value((Param("?"),))

    def _sum(self, node: ir.Sum) -> Value:
        """A sum of sums is followed from its first part on: prompts are strung together of hundreds."""
        self._reach.usage(node)
        sums = ir.spine(node)
        value = self.value_of(sums[0].left)
        for part in sums:
            right = self.value_of(part.right)
            value = merged([self.printed(part.left, value), self.printed(part.right, right)], part)
            if value.is_messages:
                self._reach.reach(value, Sink.MESSAGES)
        return value

    def _ratio(self, node: ir.Ratio) -> Value:
        self._reach.usage(node)
        return union(self.value_of(node.left), self.value_of(node.right))

    def _compare(self, node: ir.Compare) -> Value:
        self._reach.usage(node)
        return EMPTY

    def _dict(self, node: ir.DictExpr) -> Value:
        values = [(key, self.value_of(value)) for key, value in node.items]
        joined = union(*(value for _, value in values))
        self._reach.mapping(node, values, joined)
        entries = tuple((key, value) for key, value in values if key)
        return Value(joined.pieces, is_messages=role_of(node) is not None, entries=entries)

    def _sequence(self, node: ir.Seq) -> Value:
        values = [self.value_of(item) for item in node.items]
        joined = self._reach.sequence(node, values, union(*values))
        items = tuple(values) if node.is_tuple else ()
        return replace(joined, is_set=node.is_set and len(node.items) > 1, text=None, items=items)

    def _comprehension(self, node: ir.Comprehension) -> Value:
        names = self._scope.frame.names
        marks: list[Mark] = []
        flattens = False
        for targets, source in node.loops:
            iterated = self.value_of(source)
            marks += loop_marks(source, iterated, ordered_sets=self._ordered_sets)
            flattens = flattens or _is_messages_like(source)
            names.update(dict.fromkeys(targets, element(Value(iterated.without(PER_ELEMENT).pieces))))
        for condition in node.filters:
            self.value_of(condition)
        value = self.value_of(node.element)
        if flattens and _prints_message(node.element):
            value = value.marked(Kind.TRANSCRIPT, node)
        if node.is_set:
            return replace(value, is_set=True)
        kept = [m for m in marks if m not in value.pieces]
        return replace(value, pieces=(*kept, *value.pieces), is_set=False, text=None)

    def _slice(self, node: ir.Slice) -> Value:
        value = self.value_of(node.base)
        name = ir.dotted(node.base).rsplit(".", 1)[-1]
        window = node.from_end and node.open_ended and not node.last_only and not node.of_characters
        rare = any(cuts_by_much(guard, node) for guard in self._scope.frame.guards)
        if window and not rare and sources.MESSAGES_LIKE.match(name):
            return value.marked(Kind.WINDOW, node)
        if any(m.kind is Kind.CLOCK for m in value.marks) and not node.from_end and not node.open_ended:
            return value.of_kind(Kind.CLOCK, Kind.DATE)  # isoformat()[:10]
        return replace(value, definition=None, text=None)

    def _index(self, node: ir.Index) -> Value:
        drawn = [m for m in self.value_of(node.key).marks if _draws(m)]
        base = replace(self.value_of(node.base), is_messages=False, definition=None)
        return base.marked(Kind.SAMPLED, drawn[0].origin) if drawn else base

    def _group(self, node: ir.Group) -> Value:
        values = [self.value_of(part) for part in node.parts]
        joined = union(*values)
        return replace(joined, is_set=True) if any(value.is_set for value in values) else joined


def _draws(mark: Mark) -> bool:
    """What is picked by this index is drawn."""
    return mark.kind is Kind.SAMPLED or (mark.kind is Kind.RANDOM_ID and sources.is_random_number(mark.origin))


def _const(node: ir.Const) -> Value:
    return Value((Text(len(node.text)),), text=node.text) if node.text else EMPTY


def _is_messages_like(node: ir.Node) -> bool:
    """A conversation, or its end; what is made of its first messages alone repeats no conversation."""
    if isinstance(node, ir.Slice) and node.of_head:
        return False
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
