"""A small form of a program, enough for data flow: expressions and statements of Python and TypeScript alike."""

from __future__ import annotations

from dataclasses import dataclass, field

LEAST_CHARACTERS = 500  # a slice of so many counts characters, not messages


@dataclass(slots=True)
class Node:
    """Where something stands: line (from 1) and character offsets."""

    line: int = 0
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class Name(Node):
    id: str = ""


@dataclass(slots=True)
class Attr(Node):
    base: Node = field(default_factory=Node)
    name: str = ""


@dataclass(slots=True)
class Const(Node):
    """A literal; `text` is None for anything but a string."""

    text: str | None = None
    value: object = None


@dataclass(slots=True)
class Concat(Node):
    """Parts that become one text: f-string, template literal, `+`, `%`, `format`."""

    parts: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Formatted(Node):
    """A placeholder of an f-string with its conversion (`r`) or format (`%H:%M`)."""

    value: Node = field(default_factory=Node)
    conversion: str = ""
    spec: str = ""


@dataclass(slots=True)
class Call(Node):
    func: Node = field(default_factory=Node)
    args: list[Node] = field(default_factory=list)
    kwargs: dict[str, Node] = field(default_factory=dict)
    is_new: bool = False


@dataclass(slots=True)
class DictExpr(Node):
    """Keys are None for spreads and computed keys."""

    items: list[tuple[str | None, Node]] = field(default_factory=list)

    def get(self, key: str) -> Node | None:
        """The last value under a literal key."""
        return next((value for name, value in reversed(self.items) if name == key), None)


@dataclass(slots=True)
class Seq(Node):
    """A list, tuple or set display."""

    items: list[Node] = field(default_factory=list)
    is_set: bool = False
    is_tuple: bool = False


@dataclass(slots=True)
class Comprehension(Node):
    element: Node = field(default_factory=Node)
    loops: list[tuple[list[str], Node]] = field(default_factory=list)
    filters: list[Node] = field(default_factory=list)
    is_set: bool = False


@dataclass(slots=True)
class Slice(Node):
    """`base[lower:upper]`; `from_end` when the lower bound counts from the end, `of_characters` when by hundreds.

    `kept` names how many are kept when it counts from the end: a number or a dotted name.
    """

    base: Node = field(default_factory=Node)
    from_end: bool = False
    open_ended: bool = False
    last_only: bool = False
    of_characters: bool = False
    kept: str = ""
    of_head: bool = False  # `[:n]`: the first ones


@dataclass(slots=True)
class Index(Node):
    base: Node = field(default_factory=Node)
    key: Node = field(default_factory=Node)


@dataclass(slots=True)
class Compare(Node):
    op: str = ""
    left: Node = field(default_factory=Node)
    right: Node = field(default_factory=Node)


@dataclass(slots=True)
class Group(Node):
    """Anything else that passes on its parts: conditions, unary and boolean operators, spreads, awaits."""

    parts: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Sum(Node):
    """`left + right`: of texts, lists or numbers."""

    left: Node = field(default_factory=Node)
    right: Node = field(default_factory=Node)


def spine(node: Sum) -> list[Sum]:
    """The sums of `a + b + c` from the innermost on: `a + b`, `(a + b) + c`."""
    found = [node]
    while isinstance(found[-1].left, Sum):
        found.append(found[-1].left)
    return found[::-1]


@dataclass(slots=True)
class Ratio(Node):
    """`left / right`."""

    left: Node = field(default_factory=Node)
    right: Node = field(default_factory=Node)


@dataclass(slots=True)
class Lambda(Node):
    params: list[str] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Assign(Node):
    targets: list[Node] = field(default_factory=list)
    value: Node = field(default_factory=Node)
    augmented: bool = False


@dataclass(slots=True)
class Do(Node):
    value: Node = field(default_factory=Node)


@dataclass(slots=True)
class Return(Node):
    value: Node = field(default_factory=Node)
    is_yield: bool = False


@dataclass(slots=True)
class For(Node):
    targets: list[str] = field(default_factory=list)
    iter: Node = field(default_factory=Node)
    body: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Block(Node):
    """Bodies that may run: loops, with blocks; and branches, of which `body` is one and `others` are the other ones."""

    body: list[Node] = field(default_factory=list)
    others: list[list[Node]] = field(default_factory=list)

    @property
    def paths(self) -> list[list[Node]]:
        """All bodies."""
        return [self.body, *self.others]


@dataclass(slots=True)
class Def(Node):
    name: str = ""
    params: list[str] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    cached: bool = False
    owner: str | None = None
    makes_system: bool = False  # decorated as the function of a system prompt
    is_property: bool = False
    sets: frozenset[str] = frozenset()  # parameters that are sets by their annotations


@dataclass(slots=True)
class ClassDef(Node):
    name: str = ""
    body: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """One source file."""

    body: list[Node]
    imports: dict[str, str]  # local name -> dotted origin


def amount(node: Node) -> str:
    """A number or a dotted name as it stands; empty for anything else."""
    return str(node.value) if isinstance(node, Const) and node.text is None else dotted(node)


def dotted(node: Node) -> str:
    """`a.b.c` of names and attributes; calls and indices are left out, unknown bases are empty."""
    if isinstance(node, Name):
        return node.id
    if isinstance(node, Attr):
        base = dotted(node.base)
        return f"{base}.{node.name}" if base else node.name
    if isinstance(node, Call):
        return dotted(node.func)
    if isinstance(node, Index | Slice):
        return dotted(node.base)
    return ""
