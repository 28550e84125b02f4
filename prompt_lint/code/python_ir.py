"""Python source to the small form, through `ast`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from . import ir
from .newer_python import older_syntax

_CACHES = {"cache", "lru_cache", "cached", "cached_property", "memoize", "cache_resource", "cache_data"}
_SETS = {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
_PROPERTIES = {"property", "cached_property", "computed_field"}
_SYSTEM = {"system_prompt", "instructions", "dynamic_prompt"}


class _Positions:
    """Character offsets of lines; columns of `ast` are bytes."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        self._is_ascii = text.isascii()
        self._lines = [f"{line}\n" for line in text.split("\n")]  # a form feed ends no line
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """The offset of a column of a line (from 1)."""
        if self._is_ascii:
            return self._starts[line - 1] + column
        if line > len(self._lines):
            return self._starts[-1]
        text = self._lines[line - 1]
        if text.isascii():
            return self._starts[line - 1] + column
        return self._starts[line - 1] + len(text.encode()[:column].decode(errors="ignore"))


class PythonReader:
    """Turns one module into the small form."""

    def __init__(self, text: str) -> None:
        self._positions = _Positions(text)
        self._imports: dict[str, str] = {}
        self._handlers: dict[type[ast.expr], Callable[[Any], ir.Node]] = {
            ast.Constant: self._constant,
            ast.Name: lambda node: ir.Name(*self._at(node), node.id),
            ast.Attribute: lambda node: ir.Attr(*self._at(node), self.expr(node.value), node.attr),
            ast.JoinedStr: lambda node: ir.Concat(*self._at(node), self.exprs(node.values)),
            ast.FormattedValue: self._placeholder,
            ast.BinOp: self._binary,
            ast.Call: self._call,
            ast.Dict: self._mapping,
            ast.List: self._display,
            ast.Tuple: self._display,
            ast.Set: self._display,
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.Subscript: self._subscript,
            ast.Lambda: self._lambda,
        }

    def module(self, tree: ast.Module) -> ir.Module:
        """The whole file."""
        return ir.Module(self._body(tree.body, None), self._imports)

    def _at(self, node: ast.expr | ast.stmt) -> tuple[int, int, int]:
        offset = self._positions.offset
        start = offset(node.lineno, node.col_offset)
        return node.lineno, start, offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def _body(self, statements: list[ast.stmt], owner: str | None) -> list[ir.Node]:
        found: list[ir.Node] = []
        for statement in statements:
            node = self._statement(statement, owner)
            if node is not None:
                found.append(node)
        return found

    def _statement(self, node: ast.stmt, owner: str | None) -> ir.Node | None:
        at = self._at(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._function(node, owner)
            case ast.ClassDef():
                return ir.ClassDef(*at, node.name, self._body(node.body, node.name))
            case ast.Assign():
                return ir.Assign(*at, [self._target(t) for t in node.targets], self.expr(node.value))
            case ast.Delete(targets=[ast.Subscript() as target]):
                return self._deletion(target, at)
            case ast.AnnAssign():
                return ir.Assign(*at, [self.expr(node.target)], self.expr(node.value)) if node.value else None
            case ast.AugAssign():
                return ir.Assign(*at, [self.expr(node.target)], self.expr(node.value), augmented=True)
            case ast.Return():
                return ir.Return(*at, self.expr(node.value)) if node.value else None
            case ast.For() | ast.AsyncFor():
                body = self._body(node.body + node.orelse, owner)
                return ir.For(*at, _names(node.target), self.expr(node.iter), body)
            case ast.Expr(value=ast.Yield(value=value)) | ast.Expr(value=ast.YieldFrom(value=value)):
                return ir.Return(*at, self.expr(value), is_yield=True) if value else None
            case ast.Expr():
                return ir.Do(*at, self.expr(node.value))
            case ast.Import() | ast.ImportFrom():
                self._import(node)
                return None
            case _:
                return self._compound(node, owner)

    def _compound(self, node: ast.stmt, owner: str | None) -> ir.Node | None:
        at = self._at(node)
        body: list[ir.Node] = []
        match node:
            case ast.If():
                body = [ir.Do(*at, self.expr(node.test)), *self._body(node.body, owner)]
                return ir.Block(*at, body, [self._body(node.orelse, owner)])
            case ast.While():
                body = [ir.Do(*at, self.expr(node.test)), *self._body(node.body + node.orelse, owner)]
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.expr(item.context_expr)
                    targets = [self.expr(item.optional_vars)] if item.optional_vars else []
                    body.append(ir.Assign(*at, targets, value) if targets else ir.Do(*at, value))
                body += self._body(node.body, owner)
            case ast.Try() | ast.TryStar():
                handlers = ir.Block(*at, [], [self._body(handler.body, owner) for handler in node.handlers])
                body = [*self._body(node.body + node.orelse, owner), handlers, *self._body(node.finalbody, owner)]
            case ast.Match():
                return ir.Block(
                    *at, [ir.Do(*at, self.expr(node.subject))], [self._body(c.body, owner) for c in node.cases]
                )
            case _:
                return None
        return ir.Block(*at, body)

    def _target(self, node: ast.expr) -> ir.Node:
        """`messages[:] = …` gives the list itself other contents."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self.expr(node.value)
        return self.expr(node)

    def _deletion(self, node: ast.Subscript, at: tuple[int, int, int]) -> ir.Node:
        """`del messages[:-20]` keeps the last ones; `del messages[1:3]` drops the first as `pop(1)` does."""
        base = self.expr(node.value)
        first = node.slice
        if isinstance(node.slice, ast.Slice):
            upper = node.slice.upper
            if node.slice.lower is None and _counts_from_end(upper):
                kept = ir.Slice(*at, base, True, True, _is_minus_one(upper), _is_long(upper), self._kept(upper))
                return ir.Assign(*at, [base], kept)
            first = node.slice.lower or ast.Constant(0, lineno=node.lineno, col_offset=node.col_offset)
        return ir.Do(*at, ir.Call(*at, ir.Attr(*at, base, "pop"), [self.expr(first)]))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str | None) -> ir.Def:
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names = [a.arg for a in parameters]
        sets = frozenset(a.arg for a in parameters if a.annotation and self._names_a_set(a.annotation))
        decorators = {ir.dotted(self.expr(d)).rsplit(".", 1)[-1] for d in node.decorator_list}
        body = self._body(node.body, None)
        return ir.Def(
            *self._at(node),
            node.name,
            names,
            body,
            bool(decorators & _CACHES),
            owner,
            bool(decorators & _SYSTEM),
            bool(decorators & _PROPERTIES),
            sets,
        )

    def _names_a_set(self, annotation: ast.expr) -> bool:
        """``set[str]``, ``frozenset``, ``typing.Set[str]``, ``set[str] | None``."""
        if isinstance(annotation, ast.BinOp):
            return self._names_a_set(annotation.left) or self._names_a_set(annotation.right)
        named = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        return ir.dotted(self.expr(named)).rsplit(".", 1)[-1] in _SETS

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._imports[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        else:
            for alias in node.names:
                self._imports[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"

    def exprs(self, nodes: list[ast.expr]) -> list[ir.Node]:
        """Several expressions."""
        return [self.expr(n) for n in nodes]

    def expr(self, node: ast.expr) -> ir.Node:
        """One expression."""
        handler = self._handlers.get(type(node))
        return handler(node) if handler is not None else self._other(node)

    def _constant(self, node: ast.Constant) -> ir.Node:
        return ir.Const(*self._at(node), node.value if isinstance(node.value, str) else None, node.value)

    def _mapping(self, node: ast.Dict) -> ir.Node:
        keys = [k.value if isinstance(k, ast.Constant) and isinstance(k.value, str) else None for k in node.keys]
        return ir.DictExpr(*self._at(node), list(zip(keys, self.exprs(node.values), strict=True)))

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> ir.Node:
        items = self.exprs(node.elts)
        return ir.Seq(*self._at(node), items, isinstance(node, ast.Set), isinstance(node, ast.Tuple))

    def _lambda(self, node: ast.Lambda) -> ir.Node:
        at = self._at(node)
        return ir.Lambda(*at, [a.arg for a in node.args.args], [ir.Return(*at, self.expr(node.body))])

    def _other(self, node: ast.expr) -> ir.Node:
        at = self._at(node)
        match node:
            case ast.Compare(ops=[op], comparators=[right]):
                return ir.Compare(*at, type(op).__name__, self.expr(node.left), self.expr(right))
            case ast.IfExp():
                return ir.Group(*at, self.exprs([node.body, node.orelse]))
            case ast.BoolOp():
                return ir.Group(*at, self.exprs(node.values))
            case ast.Await() | ast.Starred() | ast.YieldFrom():
                return ir.Group(*at, [self.expr(node.value)])
            case ast.NamedExpr():
                return ir.Assign(*at, [self.expr(node.target)], self.expr(node.value))
            case _:
                return ir.Node(*at)

    def _placeholder(self, node: ast.FormattedValue) -> ir.Node:
        spec = ""
        if isinstance(node.format_spec, ast.JoinedStr):
            spec = "".join(str(v.value) for v in node.format_spec.values if isinstance(v, ast.Constant))
        conversion = chr(node.conversion) if node.conversion > 0 else ""
        return ir.Formatted(*self._at(node), self.expr(node.value), conversion, spec)

    def _binary(self, node: ast.BinOp) -> ir.Node:
        """An operation; a long row of them is read from its first part on."""
        row = [node]
        while isinstance(row[-1].left, ast.BinOp):
            row.append(row[-1].left)
        left = self.expr(row[-1].left)
        for part in reversed(row):
            left = self._operation(part, left)
        return left

    def _operation(self, node: ast.BinOp, left: ir.Node) -> ir.Node:
        at = self._at(node)
        right = self.expr(node.right)
        match node.op:
            case ast.Add():
                return ir.Sum(*at, left, right)
            case ast.Mod() if isinstance(left, ir.Const) and left.text is not None:
                return ir.Concat(*at, [left, right])
            case ast.Div():
                return ir.Ratio(*at, left, right)
            case ast.Mult() if isinstance(left, ir.Const) and left.text and isinstance(right, ir.Const):
                times = right.value if isinstance(right.value, int) else 1
                return ir.Const(*at, left.text * max(0, min(times, 10_000)), None)
            case ast.Sub() | ast.BitAnd() | ast.BitOr() | ast.BitXor() if _is_view(left) or _is_view(right):
                return ir.Seq(*at, [left, right], is_set=True)
            case _:
                return ir.Group(*at, [left, right])

    def _call(self, node: ast.Call) -> ir.Node:
        kwargs = {k.arg: self.expr(k.value) for k in node.keywords if k.arg}
        args = self.exprs(node.args) + [self.expr(k.value) for k in node.keywords if k.arg is None]
        return ir.Call(*self._at(node), self.expr(node.func), args, kwargs)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> ir.Node:
        at = self._at(node)
        if isinstance(node, ast.DictComp):
            element: ir.Node = ir.Group(*at, [self.expr(node.key), self.expr(node.value)])
        else:
            element = self.expr(node.elt)
        loops = [(_names(g.target), self.expr(g.iter)) for g in node.generators]
        filters = [self.expr(f) for g in node.generators for f in g.ifs]
        return ir.Comprehension(*at, element, loops, filters, isinstance(node, ast.SetComp))

    def _subscript(self, node: ast.Subscript) -> ir.Node:
        at = self._at(node)
        base = self.expr(node.value)
        if not isinstance(node.slice, ast.Slice):
            return ir.Index(*at, base, self.expr(node.slice))
        lower = node.slice.lower
        open_ended = node.slice.upper is None and node.slice.step is None
        behind = _behind_length(lower, node.value)
        if behind is not None:
            kept = ir.amount(self.expr(behind))
            return ir.Slice(*at, base, True, open_ended, kept == "1", kept=kept)
        kept = self._kept(lower)
        of_head = lower is None and node.slice.upper is not None and not _counts_from_end(node.slice.upper)
        from_end, last_only = _counts_from_end(lower), _is_minus_one(lower)
        return ir.Slice(*at, base, from_end, open_ended, last_only, _is_long(lower), kept, of_head)

    def _kept(self, lower: ast.expr | None) -> str:
        """`20` of `-20`, `self.window` of `-self.window`."""
        return ir.amount(self.expr(lower.operand)) if isinstance(lower, ast.UnaryOp) else ""


def _is_view(node: ir.Node) -> bool:
    """`table.keys()`: a view on a dict has its order, and with an operator becomes a set."""
    return isinstance(node, ir.Call) and isinstance(node.func, ir.Attr) and node.func.name in ("keys", "items")


def _counts_from_end(lower: ast.expr | None) -> bool:
    """`-n`, `-n * 2`, `-self.window`."""
    while isinstance(lower, ast.BinOp):
        lower = lower.left
    return isinstance(lower, ast.UnaryOp) and isinstance(lower.op, ast.USub)


def _behind_length(lower: ast.expr | None, base: ast.expr) -> ast.expr | None:
    """The 20 of `base[len(base) - 20:]` and of `base[max(0, len(base) - 20):]`."""
    match lower:
        case ast.Call(func=ast.Name(id="max"), args=[_, inner]):
            return _behind_length(inner, base)
        case ast.BinOp(left=ast.Call(func=ast.Name(id="len"), args=[counted]), op=ast.Sub(), right=right):
            return right if ast.dump(counted) == ast.dump(base) else None
    return None


def _is_minus_one(lower: ast.expr | None) -> bool:
    return isinstance(lower, ast.UnaryOp) and isinstance(lower.operand, ast.Constant) and lower.operand.value == 1


def _is_long(lower: ast.expr | None) -> bool:
    """`-9000`: no window of messages is as long."""
    value = lower.operand if isinstance(lower, ast.UnaryOp) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value >= ir.LEAST_CHARACTERS


def _names(target: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]


def read_python(text: str) -> ir.Module:
    """Parse Python source. Raises: SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of somebody else's source
        tree = ast.parse(text)
    return PythonReader(text).module(tree)


def read_any_python(text: str) -> ir.Module:
    """Parse Python source, also of newer versions than the one that runs. Raises: SyntaxError, the first one."""
    try:
        return read_python(text)
    except SyntaxError as error:
        try:
            return read_python(older_syntax(text))
        except SyntaxError:
            raise error from None
