"""What data flow knows about a value: the pieces of which it is made, in their order."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from . import ir

_MOST_PIECES = 48


class Kind(enum.Enum):
    """Where a value comes from."""

    CLOCK = "a clock value"
    DATE = "a date"
    RANDOM_ID = "a random id"
    ADDRESS = "a default repr with a memory address"
    SAMPLED = "a random sample"
    UNORDERED = "a set in hash order"
    LISTING = "a directory listing in file-system order"
    COMPLETION = "results in completion order"
    ENVIRONMENT = "state of the working copy or the machine"
    FIXED_ENVIRONMENT = "the machine or its directory"
    USER = "a user's data"
    RETRIEVED = "retrieved text"
    MEMORY = "recalled memories"
    JSON_DUMP = "JSON with unsorted keys"
    SIGNED_URL = "a signed URL"
    WINDOW = "the last N messages"
    TRANSCRIPT = "a flattened conversation"
    RENDERED = "a rendered prompt"


ORDER_KINDS = frozenset({Kind.UNORDERED, Kind.LISTING, Kind.COMPLETION})
VOLATILE_KINDS = frozenset(
    {Kind.CLOCK, Kind.DATE, Kind.RANDOM_ID, Kind.SAMPLED, Kind.ENVIRONMENT, Kind.FIXED_ENVIRONMENT, Kind.LISTING}
)
SITED_KINDS = frozenset({Kind.UNORDERED, Kind.LISTING, Kind.COMPLETION, Kind.JSON_DUMP, Kind.WINDOW, Kind.SAMPLED})


@dataclass(frozen=True, slots=True)
class Text:
    """Static characters."""

    size: int


@dataclass(frozen=True, slots=True)
class Param:
    """Whatever a parameter brings."""

    name: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A tracked origin. `site` is where the value was last merged into other text, else where it comes from; `passed`
    are the starts of earlier sites."""

    kind: Kind
    origin: ir.Node
    site: ir.Node
    passed: frozenset[int] = field(default=frozenset(), compare=False)

    def merged_at(self, site: ir.Node) -> Mark:
        """The mark behind one more merge."""
        return replace(self, site=site, passed=self.passed | {self.site.start})


Piece = Text | Param | Mark


@dataclass(frozen=True, slots=True)
class Value:
    """Pieces in order, and what kind of container it is."""

    pieces: tuple[Piece, ...] = ()
    is_set: bool = False
    is_messages: bool = False
    definition: ir.Def | ir.Lambda | None = None
    text: str | None = None
    items: tuple[Value, ...] = ()  # of a tuple, for destructuring
    entries: tuple[tuple[str, Value], ...] = ()  # of a dict that is written out, by its keys
    instance: str | None = None  # the class of this module that it is an object of

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All tracked origins in it."""
        return tuple(p for p in self.pieces if isinstance(p, Mark))

    def static_after(self, mark: Mark) -> int:
        """Static characters behind a mark."""
        seen, total = False, 0
        for piece in self.pieces:
            if piece is mark:
                seen = True
            elif seen and isinstance(piece, Text):
                total += piece.size
        return total

    def without(self, kinds: frozenset[Kind]) -> Value:
        """The value with some origins cleared."""
        if not any(isinstance(p, Mark) for p in self.pieces):
            return self
        return replace(self, pieces=tuple(p for p in self.pieces if not (isinstance(p, Mark) and p.kind in kinds)))

    def only(self, kinds: frozenset[Kind]) -> Value:
        """The value with no other origins than these."""
        return replace(self, pieces=tuple(p for p in self.pieces if not isinstance(p, Mark) or p.kind in kinds))

    def only_marks(self, kinds: frozenset[Kind]) -> Value:
        """Nothing but the origins of some kinds."""
        return Value(tuple(m for m in self.marks if m.kind in kinds))

    def of_kind(self, old: Kind, new: Kind) -> Value:
        """The value with the origins of one kind turned into another kind."""
        pieces = tuple(replace(p, kind=new) if isinstance(p, Mark) and p.kind is old else p for p in self.pieces)
        return replace(self, pieces=pieces, definition=None, text=None)

    def marked(self, kind: Kind, node: ir.Node) -> Value:
        """The value with one more origin, unless it has it."""
        if any(m.kind is kind and m.origin is node for m in self.marks):
            return self
        return replace(self, pieces=(Mark(kind, node, node), *self.pieces)[:_MOST_PIECES])


EMPTY = Value()


def union(*values: Value) -> Value:
    """Pieces of all, in order; nothing is merged as text."""
    filled = [v for v in values if v.pieces]
    if len(filled) < 2:
        pieces_of_one = filled[0].pieces if filled else ()
        has_messages = any(v.is_messages for v in values)
        return Value(pieces_of_one, is_messages=has_messages) if filled or has_messages else EMPTY
    pieces: list[Piece] = []
    for value in filled:
        pieces.extend(p for p in value.pieces if isinstance(p, Text) or p not in pieces)
    return Value(tuple(_compressed(pieces)), is_messages=any(v.is_messages for v in values))


def either(values: list[Value]) -> Value:
    """One of several values; tuples of one length stay tuples."""
    joined = union(*values)
    lengths = {len(v.items) for v in values}
    if len(lengths) == 1 and lengths != {0}:
        return replace(joined, items=tuple(union(*column) for column in zip(*(v.items for v in values), strict=True)))
    return joined


def one_of(values: list[Value]) -> Value:
    """What a name holds behind branches of which each gave it one of these values."""
    distinct = list({id(value): value for value in values}.values())
    if len(distinct) == 1:
        return distinct[0]
    joined = either(distinct)
    return replace(
        joined,
        pieces=_each_origin_once(joined.pieces),
        is_set=any(value.is_set for value in distinct),
        definition=next((value.definition for value in distinct if value.definition is not None), None),
    )


def joined_names(ends: list[dict[str, Value]]) -> dict[str, Value]:
    """What names hold behind branches at whose ends they held these values."""
    names = dict(ends[0])
    apart = {name for end in ends[1:] for name, value in end.items() if names.get(name) is not value}
    for name in apart:
        names[name] = one_of([end[name] for end in ends if name in end])
    return names


def _each_origin_once(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Of what came from one place by several ways, what became text first."""
    first: dict[tuple[Kind, int], Mark] = {}
    for mark in (piece for piece in pieces if isinstance(piece, Mark)):
        known = first.get((mark.kind, id(mark.origin)))
        if known is None or mark.site.start < known.site.start:
            first[mark.kind, id(mark.origin)] = mark
    return tuple(p for p in pieces if not isinstance(p, Mark) or first[p.kind, id(p.origin)] is p)


def merged(parts: list[Value], site: ir.Node) -> Value:
    """Parts that become one text at `site`."""
    joined = union(*parts)
    if len([p for p in parts if p.pieces]) < 2:
        return joined
    pieces = tuple(p.merged_at(site) if isinstance(p, Mark) and p.kind not in SITED_KINDS else p for p in joined.pieces)
    return replace(joined, pieces=pieces)


def strung(parts: list[Value], site: ir.Node) -> Value:
    """Texts that are strung together at `site`; an origin that is part of a text already stays where it became one."""
    joined = union(*parts)
    pieces = tuple(
        p.merged_at(site) if isinstance(p, Mark) and p.site is p.origin and p.kind not in SITED_KINDS else p
        for p in joined.pieces
    )
    return replace(joined, pieces=pieces)


def _compressed(pieces: list[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].size + piece.size)
        else:
            found.append(piece)
    return found[:_MOST_PIECES]
