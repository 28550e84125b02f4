"""What data flow knows while it evaluates: functions being run, names, attributes, loops."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import ir
from .sinks import Sink
from .values import EMPTY, Mark, Param, Value, union

_OWN = ("self", "this", "cls")
_INITIALISERS = {"__init__", "constructor", "__post_init__", "setUp", "initialize"}


@dataclass(slots=True)
class Summary:
    """What a function returns, and which of its parameters reach a prompt."""

    returns: Value = EMPTY
    reached: dict[str, set[Sink]] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """One function (or the module) being evaluated."""

    definition: ir.Def | ir.Lambda | None
    names: dict[str, Value]
    returned: list[Value] = field(default_factory=list)
    loops: list[tuple[frozenset[str], tuple[Mark, ...]]] = field(default_factory=list)
    reached: dict[str, set[Sink]] = field(default_factory=dict)
    is_seeded: bool = False  # a fixed seed was set
    guards: list[ir.Compare] = field(default_factory=list)  # conditions of the branches being evaluated

    @property
    def is_once(self) -> bool:
        """Values made here live as long as the module or the object."""
        return self.definition is None or (
            isinstance(self.definition, ir.Def) and (self.definition.cached or self.definition.name in _INITIALISERS)
        )


class Scope:
    """Owns the frames of the functions being evaluated, the attributes of objects and the module's functions."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame(None, {})]
        self.attributes: dict[str, Value] = {}
        self.functions: dict[str, ir.Def] = {}
        self.classes: dict[str, dict[str, ir.Def]] = {}  # the methods of the module's classes
        self.seeded: set[str] = set()  # generators made with a fixed seed

    @property
    def frame(self) -> Frame:
        """The function being evaluated."""
        return self.frames[-1]

    def collect(self, body: list[ir.Node]) -> None:
        """Note the functions and methods that some statements define."""
        for node in body:
            if isinstance(node, ir.Def):
                self.functions.setdefault(node.name, node)
                self.collect(node.body)
            elif isinstance(node, ir.Block):
                for path in node.paths:
                    self.collect(path)
            elif isinstance(node, ir.ClassDef | ir.For):
                if isinstance(node, ir.ClassDef):
                    self.classes[node.name] = {part.name: part for part in node.body if isinstance(part, ir.Def)}
                self.collect(node.body)

    def knows_attribute(self, name: str) -> bool:
        """True for an attribute that was assigned: of the object itself, or of a local one in this function."""
        return name in self.attributes or ("." in name and name in self.frame.names)

    def property_of(self, node: ir.Attr) -> ir.Def | None:
        """`self.now`, where `now` is a property of a class of this module."""
        own = isinstance(node.base, ir.Name) and node.base.id in _OWN
        found = self.own_method(node.name) if own else None
        return found if found is not None and found.is_property else None

    def own_method(self, name: str) -> ir.Def | None:
        """The method that `self.name` is: of the class whose method is evaluated, else of any (it may inherit it)."""
        owners = (f.definition.owner for f in reversed(self.frames) if isinstance(f.definition, ir.Def))
        owner = next((owner for owner in owners if owner), None)
        return self.classes.get(owner or "", {}).get(name) or self.functions.get(name)

    def lookup(self, name: str) -> Value:
        """The value of a name or a dotted attribute; empty when nothing is known."""
        for frame in reversed(self.frames):
            found = frame.names.get(name)
            if found is not None:
                return found
        if name in self.attributes:
            return self.attributes[name]
        definition = self.functions.get(name)
        return Value(definition=definition) if definition else EMPTY

    def store(self, target: ir.Node, value: Value) -> None:
        """Assign to a name or an attribute. An attribute keeps what other methods put into it."""
        if isinstance(target, ir.Name):
            self.frame.names[target.id] = value
        elif isinstance(target, ir.Attr):
            name = ir.dotted(target)
            if not _is_own(name):
                self.frame.names[name] = value
                return
            kept = self.attributes.get(name)
            self.attributes[name] = union(kept, value) if kept else value

    def extend(self, target: ir.Node, value: Value) -> None:
        """Put something into a container, where it was defined."""
        name = ir.dotted(target)
        before = self.lookup(name)
        grown = union(before, value)
        grown = replace(grown, is_set=before.is_set, is_messages=before.is_messages or value.is_messages)
        for frame in reversed(self.frames):
            if name in frame.names:
                frame.names[name] = grown
                return
        if _is_own(name):
            self.attributes[name] = grown
        else:
            self.frame.names[name] = grown

    def in_loops(self, value: Value, name: str | None = None) -> Value:
        """Something gathered inside a loop takes over the loop's order."""
        for own, marks in self.frame.loops:
            if name is None or name not in own:
                for mark in marks:
                    if mark not in value.pieces:
                        value = replace(value, pieces=(mark, *value.pieces))
        return value


def _is_own(name: str) -> bool:
    """`self.messages`: an attribute that a class's methods share."""
    return name.partition(".")[0] in _OWN and "." in name


def element(value: Value) -> Value:
    """What a loop's variable holds."""
    return value if value.pieces or value.definition else Value((Param("?"),))
