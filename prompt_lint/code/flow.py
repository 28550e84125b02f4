"""Data flow over the small form: which origins reach which part of a prompt."""

from __future__ import annotations

from . import ir, sinks, sources
from .calls import Calls, Outside
from .expressions import PER_ELEMENT, Expressions
from .frames import Frame, Scope, Summary, element
from .loops import loop_marks, touched_containers
from .reach import Reach
from .sinks import Sink
from .truncation import condition_of, drops_oldest, holds_messages
from .values import EMPTY, VOLATILE_KINDS, Kind, Mark, Param, Value, either, joined_names, strung
from .verdicts import CodeHit

_COMPLETION = frozenset({Kind.COMPLETION})
_OUTPUT = frozenset({Kind.ENVIRONMENT})
_DEEPEST = 24


class Flow:
    """Evaluates one module. `outside` resolves imported functions to their definitions' summaries.

    `ordered_sets` is true for JavaScript, whose sets keep the order of insertion.
    """

    def __init__(self, module: ir.Module, *, ordered_sets: bool, outside: Outside = lambda name: None) -> None:
        self._module = module
        self._ordered_sets = ordered_sets
        self._scope = Scope()
        self._summaries: dict[int, Summary] = {}
        self._active: set[int] = set()
        self._reach = Reach(self._scope, module.imports, lambda d: self._analyse(d).returns, ordered_sets=ordered_sets)
        calls = Calls(self._scope, self._reach, module.imports, self._summary, outside, ordered_sets=ordered_sets)
        self._expressions = Expressions(
            self._scope,
            self._reach,
            lambda node: calls.value_of(node, self._expressions),
            self._statement,
            lambda definition: self._summary(definition).returns,
            ordered_sets=ordered_sets,
        )

    def run(self) -> list[CodeHit]:
        """All hits, in the order of lines."""
        self._scope.collect(self._module.body)
        self._statements(self._module.body)
        definitions = list(self._scope.functions.values())
        for definition in definitions:
            if id(definition) not in self._summaries:
                self._analyse(definition)
        if any(value.marks for value in self._scope.attributes.values()):  # methods may read what later ones set
            for definition in definitions:
                self._analyse(definition)
        return self._reach.hits()

    def summary_of(self, name: str) -> Summary | None:
        """The summary of a function of this module, after `run`."""
        definition = self._scope.functions.get(name)
        return self._summaries.get(id(definition)) if definition else None

    # -- functions

    def _summary(self, definition: ir.Def | ir.Lambda) -> Summary:
        """A function's summary; a function given as a value is evaluated where it is used."""
        known = self._summaries.get(id(definition))
        return known if known is not None and isinstance(definition, ir.Def) else self._analyse(definition)

    def _analyse(self, definition: ir.Def | ir.Lambda) -> Summary:
        if id(definition) in self._active or len(self._active) > _DEEPEST:
            return self._summaries.get(id(definition), Summary())
        self._active.add(id(definition))
        frame = Frame(definition, {name: _parameter(name, definition) for name in definition.params})
        self._scope.frames.append(frame)
        self._statements(definition.body)
        returns = either(frame.returned)
        if isinstance(definition, ir.Def):
            returns = self._returned(definition, returns)
        self._scope.frames.pop()
        self._active.discard(id(definition))
        summary = Summary(returns, frame.reached)
        self._summaries[id(definition)] = summary
        return summary

    def _returned(self, definition: ir.Def, returns: Value) -> Value:
        """What a function returns; a function of a system prompt reaches it."""
        if definition.cached:
            returns = returns.without(VOLATILE_KINDS)
        name = definition.name
        if definition.makes_system or sinks.SYSTEM_NAME.match(name) or sinks.SYSTEM_FUNCTION.match(name):
            self._reach.reach(returns, Sink.SYSTEM)
        return returns

    # -- statements

    def _statements(self, body: list[ir.Node]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ir.Node) -> None:
        match node:
            case ir.Assign():
                self._assign(node)
            case ir.Do():
                self._expressions.value_of(node.value)
            case ir.Return():
                value = self._expressions.value_of(node.value)
                self._scope.frame.returned.append(self._scope.in_loops(value) if node.is_yield else value)
            case ir.For():
                self._loop(node)
            case ir.Block():
                self._truncation(node)
                if node.others:
                    self._paths(node)
                else:
                    self._branch(node)
            case ir.ClassDef():
                self._statements(node.body)
            case ir.Def():
                self._scope.frame.names[node.name] = Value(definition=node)
            case _:
                self._expressions.value_of(node)

    def _paths(self, node: ir.Block) -> None:
        """Branches: behind them a name has what any of them gave it."""
        frame = self._scope.frame
        before = dict(frame.names)
        self._branch(node)
        ends = [frame.names]
        for other in node.others:
            frame.names = dict(before)
            self._statements(other)
            ends.append(frame.names)
        frame.names = joined_names(ends)

    def _branch(self, node: ir.Block) -> None:
        """A body that runs under a condition."""
        condition = condition_of(node)
        if condition is None:
            self._statements(node.body)
            return
        self._scope.frame.guards.append(condition)
        self._statements(node.body)
        self._scope.frame.guards.pop()

    def _truncation(self, node: ir.Block) -> None:
        dropped = drops_oldest(node)
        if dropped is None or not isinstance(dropped.func, ir.Attr):
            return
        value = EMPTY.marked(Kind.WINDOW, dropped)
        self._scope.extend(dropped.func.base, value)
        if holds_messages(dropped):
            self._reach.reach(value, Sink.MESSAGES)

    def _assign(self, node: ir.Assign) -> None:
        value = self._expressions.value_of(node.value)
        if self._scope.frame.is_once:
            value = value.without(VOLATILE_KINDS - {Kind.LISTING})
        for target in node.targets:
            name = ir.dotted(target)
            original = sources.aliased(node.value)
            if original:
                self._module.imports.setdefault(name, original)
            if sources.is_seeded_generator(node.value):
                self._scope.seeded.add(name)
            if sources.is_bounded_window(node.value, name):
                value = value.marked(Kind.WINDOW, node.value)
            if node.augmented:
                value = self._scope.in_loops(strung([self._scope.lookup(name), value], node), name)
            self._store(target, name, value)

    def _store(self, target: ir.Node, name: str, value: Value) -> None:
        if isinstance(target, ir.Seq):
            self._destructure(target, value)
            return
        if isinstance(target, ir.Index):
            self._scope.extend(target.base, self._scope.in_loops(value, name).without(_COMPLETION))
        else:
            self._scope.store(target, value)
        self._reach.named(target, value)

    def _destructure(self, target: ir.Seq, value: Value) -> None:
        """`a, b = f()`: item by item where the tuple is known; else what a command printed alone is brought along."""
        known = value.items if len(value.items) == len(target.items) else ()
        for i, item in enumerate(target.items):
            self._scope.store(item, known[i] if known else value.only_marks(_OUTPUT))

    def _loop(self, node: ir.For) -> None:
        iterated = self._expressions.value_of(node.iter)
        marks = loop_marks(node.iter, iterated, ordered_sets=self._ordered_sets)
        frame = self._scope.frame
        frame.names.update(dict.fromkeys(node.targets, element(Value(iterated.without(PER_ELEMENT).pieces))))
        frame.loops.append((touched_containers(node.body), marks))
        self._statements(node.body)
        frame.loops.pop()


def _parameter(name: str, definition: ir.Def | ir.Lambda) -> Value:
    if sources.USER_FIELD.match(name):
        return Value((Mark(Kind.USER, ir.Node(), ir.Node()),))
    return Value((Param(name),), is_set=isinstance(definition, ir.Def) and name in definition.sets)
