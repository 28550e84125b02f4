"""Calls and patterns with a form of their own: slices, maps, destructuring."""

from __future__ import annotations

from .. import ir


def pattern_names(target: ir.Node) -> list[str]:
    """The names that a destructuring pattern binds."""
    return [n.id for n in target.items if isinstance(n, ir.Name)] if isinstance(target, ir.Seq) else []


def unquoted(text: str) -> str:
    """A string literal without its quotes."""
    return text[1:-1]


def slice_of(base: ir.Node, args: list[ir.Node], at: tuple[int, int, int]) -> ir.Node:
    """`base.slice(…)`."""
    first = args[0]
    from_end = (
        isinstance(first, ir.Group) and first.end - first.start > 1 and len(first.parts) >= 1 and _is_negative(first)
    )
    count = first.parts[0] if from_end and isinstance(first, ir.Group) else None
    number = str(count.value) if isinstance(count, ir.Const) else ""
    long = number.isdigit() and int(number) >= ir.LEAST_CHARACTERS
    kept = ir.amount(count) if count is not None else ""
    behind = _behind_length(first, base)
    if behind is not None:
        return ir.Slice(*at, base, True, len(args) == 1, ir.amount(behind) == "1", kept=ir.amount(behind))
    of_head = (
        isinstance(first, ir.Const) and first.value == "0" and len(args) == 2 and not isinstance(args[1], ir.Group)
    )
    return ir.Slice(*at, base, from_end, len(args) == 1, number == "1", long, kept, of_head)


def _behind_length(first: ir.Node, base: ir.Node) -> ir.Node | None:
    """The 20 of `base.slice(base.length - 20)` and of `base.slice(Math.max(0, base.length - 20))`."""
    if isinstance(first, ir.Call) and ir.dotted(first.func) == "Math.max" and first.args:
        first = first.args[-1]
    if isinstance(first, ir.Group) and len(first.parts) == 2 and ir.dotted(base):
        return first.parts[1] if ir.dotted(first.parts[0]) == f"{ir.dotted(base)}.length" else None
    return None


def _is_negative(node: ir.Group) -> bool:
    """The group starts one character before its operand: a sign."""
    inner = node.parts[0]
    if isinstance(inner, ir.Group) and len(node.parts) == 2:
        return _is_negative(inner)
    return len(node.parts) == 1 and inner.start - node.start >= 1


def mapped(base: ir.Node, name: str, function: ir.Lambda, at: tuple[int, int, int]) -> ir.Node:
    """`base.map(…)` and its kin as a comprehension or a loop; an async function stores in completion order."""
    params = [p for p in function.params if p != "#async"]
    source = base
    if "#async" in function.params:
        source = ir.Call(*at, ir.Name(*at, "as_completed"), [base])
    returned = [n for n in function.body if isinstance(n, ir.Return)]
    if name == "forEach" or len(function.body) > 1 or not returned:
        loop = ir.For(*at, params[:1], source, function.body)
        return (
            loop
            if name == "forEach"
            else ir.Group(
                *at,
                [loop, ir.Comprehension(*at, returned[-1].value if returned else ir.Node(*at), [(params[:1], base)])],
            )
        )
    return ir.Comprehension(*at, returned[0].value, [(params[:1], base)])
