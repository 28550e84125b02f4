"""Expressions of TypeScript and JavaScript."""

from __future__ import annotations

from .. import ir
from ..sinks import MESSAGE_KEYWORDS, SYSTEM_KEYWORDS, TOOL_KEYWORDS
from .lexer import Token, TokenKind, template_parts
from .shapes import mapped, pattern_names, slice_of, unquoted
from .token_reader import TokenReader

_BINARY = {
    "??": 1, "||": 1, "&&": 2, "|": 3, "^": 3, "&": 3, "==": 4, "!=": 4, "===": 4, "!==": 4,
    "<": 5, ">": 5, "<=": 5, ">=": 5, "instanceof": 5, "in": 5, "<<": 6, ">>": 6, ">>>": 6,
    "+": 7, "-": 7, "*": 8, "/": 8, "%": 8, "**": 9,
}  # fmt: skip
_ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "||=", "&&=", "??=", "|=", "&=", "^=", "**=", "<<=", ">>=", ">>>="}
_UNARY = {"!", "-", "+", "~", "typeof", "void", "delete", "await", "++", "--", "...", "yield"}
_BODY_KEYS = {"model", "prompt", *SYSTEM_KEYWORDS, *TOOL_KEYWORDS, *MESSAGE_KEYWORDS} - {"input"}


class ExpressionParser(TokenReader):
    """Expressions over a token list; `Parser` adds statements."""

    # -- hooks that statements provide

    def body_of_function(self) -> list[ir.Node]:
        """Read a braced function body."""
        raise NotImplementedError

    # -- expressions

    def expression(self) -> ir.Node:
        """A comma expression."""
        node = self.assignment()
        while self.token.text == "," and self.token.kind is TokenKind.PUNCTUATION:
            self.at += 1
            node = ir.Group(node.line, node.start, node.end, [node, self.assignment()])
        return node

    def assignment(self) -> ir.Node:
        """One expression without commas."""
        self._depth += 1
        if self._depth > 150:
            self._depth -= 1
            self.at += 1
            return ir.Node()
        node = self._conditional()
        if self.token.text in _ASSIGN and self.token.kind is TokenKind.PUNCTUATION:
            operator = self.token.text
            self.at += 1
            value = self.assignment()
            node = ir.Assign(node.line, node.start, value.end, [node], value, augmented=operator == "+=")
        self._depth -= 1
        return node

    def _conditional(self) -> ir.Node:
        node = self._binary(1)
        if self.token.text == "?" and self.token.kind is TokenKind.PUNCTUATION:
            self.at += 1
            first = self.assignment()
            self.take(":")
            second = self.assignment()
            return ir.Group(node.line, node.start, second.end, [first, second])
        return node

    def _binary(self, least: int) -> ir.Node:
        left = self._unary()
        while True:
            operator = self.token.text
            level = _BINARY.get(operator, 0) if self.token.kind is not TokenKind.STRING else 0
            if level < least or (operator == "in" and self.token.kind is not TokenKind.NAME):
                return left
            self.at += 1
            right = self._binary(level + 1)
            at = (left.line, left.start, right.end)
            if operator == "+":
                left = ir.Sum(*at, left, right)
            elif operator == "/":
                left = ir.Ratio(*at, left, right)
            elif level in (4, 5):
                left = ir.Compare(*at, operator, left, right)
            else:
                left = ir.Group(*at, [left, right])

    def _unary(self) -> ir.Node:
        token = self.token
        if token.text in _UNARY and token.kind in (TokenKind.PUNCTUATION, TokenKind.NAME):
            self.at += 1
            inner = self._unary()
            return ir.Group(token.line, token.start, inner.end, [inner])
        if token.text == "<" and token.kind is TokenKind.PUNCTUATION:  # a cast, or JSX: skip the tag
            self.skip_angles()
            return self._unary()
        return self._postfix(self._primary())

    def _postfix(self, node: ir.Node) -> ir.Node:
        while True:
            token = self.token
            if token.kind is TokenKind.TEMPLATE:
                node = self._template()
            elif token.text in (".", "?."):
                node = self._member_access(node)
            elif token.text == "(" and token.kind is TokenKind.PUNCTUATION:
                node = self._call(node)
            elif token.text == "[" and not token.after_newline:
                node = self._index(node)
            elif (
                token.text == "!" and not token.after_newline and self.following.text in (".", ")", ";", ",", "[", "]")
            ) or (token.text in ("++", "--") and not token.after_newline):
                self.at += 1
            elif token.text in ("as", "satisfies") and not token.after_newline:
                self.at += 1
                self.skip_type(
                    (",", ";", ")", "]", "}", "=>", "?", ":", "&&", "||", "??", "+", "===", "!=="), newline=True
                )
            elif token.text == "<" and self.generic_call():
                continue
            else:
                return node

    def _member_access(self, node: ir.Node) -> ir.Node:
        self.at += 1
        if self.token.text in ("(", "["):
            return node
        name = self.token
        self.at += 1
        return ir.Attr(node.line, node.start, name.end, node, name.text)

    def _index(self, node: ir.Node) -> ir.Node:
        close = self.token.match
        self.at += 1
        key = self.expression()
        self.at = close + 1 if close > 0 else self.at
        return ir.Index(node.line, node.start, self.preceding.end, node, key)

    def _call(self, func: ir.Node, *, is_new: bool = False) -> ir.Node:
        close = self.token.match
        self.at += 1
        args: list[ir.Node] = []
        while self.at < close:
            args.append(self.assignment())
            if not self.take(","):
                break
        self.at = close + 1 if close > 0 else self.at + 1
        end = self.preceding.end
        return self._shaped(func, args, (func.line, func.start, end), is_new)

    def _shaped(self, func: ir.Node, args: list[ir.Node], at: tuple[int, int, int], is_new: bool) -> ir.Node:
        """Calls with a form of their own: slices, maps, loops, and calls whose argument is a body."""
        if isinstance(func, ir.Attr):
            if func.name == "slice" and args:
                return slice_of(func.base, args, at)
            if func.name in ("map", "flatMap", "forEach") and args and isinstance(args[0], ir.Lambda):
                return mapped(func.base, func.name, args[0], at)
        kwargs: dict[str, ir.Node] = {}
        rest: list[ir.Node] = []
        for arg in args:
            if isinstance(arg, ir.DictExpr) and arg.get("role") is None and any(k in _BODY_KEYS for k, _ in arg.items):
                kwargs.update({k: v for k, v in arg.items if k})
                rest += [v for k, v in arg.items if k is None]
            else:
                rest.append(arg)
        return ir.Call(*at, func, rest, kwargs, is_new)

    # -- primary expressions

    def _primary(self) -> ir.Node:
        token = self.token
        match token.kind:
            case TokenKind.STRING:
                self.at += 1
                return ir.Const(*self.place(token), unquoted(token.text), None)
            case TokenKind.TEMPLATE:
                return self._template()
            case TokenKind.NUMBER:
                self.at += 1
                return ir.Const(*self.place(token), None, token.text)
            case TokenKind.REGEX | TokenKind.END:
                self.at += token.kind is TokenKind.REGEX
                return ir.Const(*self.place(token), None, None)
            case TokenKind.NAME:
                return self._named(token)
            case _:
                return self._punctuated(token)

    def _named(self, token: Token) -> ir.Node:
        following = self.following
        if token.text == "new":
            return self._new()
        if (token.text == "async" and following.text in ("function", "(")) or (
            token.text == "async" and following.kind is TokenKind.NAME
        ):
            self.at += 1
            node = self._primary()
            if isinstance(node, ir.Lambda):
                node.params = ["#async", *node.params]
            return node
        if token.text == "function":
            self.at += 1
            self.take("*")
            if self.token.kind is TokenKind.NAME:
                self.at += 1
            params, body = self.function_rest()
            return ir.Lambda(*self.place(token), params, body)
        if following.text == "=>":
            self.at += 2
            return ir.Lambda(*self.place(token), [token.text], self._arrow_body())
        self.at += 1
        return ir.Name(*self.place(token), token.text)

    def _new(self) -> ir.Node:
        token = self.token
        self.at += 1
        func = self._primary()
        while self.token.text == ".":
            func = self._member_access(func)
        if self.token.text == "<":
            self.generic_call()
        if self.token.text == "(":
            node = self._call(func, is_new=True)
            node.line, node.start = token.line, token.start
            return node
        return ir.Call(token.line, token.start, func.end, func, [], {}, True)

    def _punctuated(self, token: Token) -> ir.Node:
        if token.text == "(":
            return self._arrow() if self._is_arrow() else self._parenthesis()
        if token.text == "[":
            return self._array()
        if token.text == "{":
            return self._object()
        self.at += token.text not in (")", "]", "}", ",", ";", ":")
        return ir.Node(*self.place(token))

    def _parenthesis(self) -> ir.Node:
        close = self.token.match
        self.at += 1
        node = self.expression()
        self.at = close + 1 if close > 0 else self.at
        return node

    def _is_arrow(self) -> bool:
        close = self.token.match
        if close < 0:
            return False
        following = self.tokens[close + 1]
        if following.text == "=>":
            return True
        if following.text != ":":
            return False
        for token in self.tokens[close + 2 : close + 40]:
            if token.text == "=>":
                return True
            if token.text in (";", "=", "?") or token.kind is TokenKind.END:
                return False
        return False

    def _arrow(self) -> ir.Node:
        token = self.token
        params, defaults = self._params()
        if self.take(":"):
            self.skip_type(("=>",))
        self.take("=>")
        return ir.Lambda(*self.place(token), params, [*defaults, *self._arrow_body()])

    def _arrow_body(self) -> list[ir.Node]:
        if self.token.text == "{":
            return self.body_of_function()
        node = self.assignment()
        return [ir.Return(node.line, node.start, node.end, node)]

    def function_rest(self) -> tuple[list[str], list[ir.Node]]:
        """Type parameters, parameters, return type and body of a function."""
        if self.token.text == "<":
            self.skip_angles()
        params, defaults = self._params() if self.token.text == "(" else ([], [])
        if self.take(":"):
            self.skip_type(("{", ";"))
        return params, [*defaults, *self.body_of_function()]

    def _params(self) -> tuple[list[str], list[ir.Node]]:
        """Names of the parameters, and assignments of what they are where nothing is given (evaluated at each call)."""
        close = self.token.match
        self.at += 1
        names: list[str] = []
        defaults: list[ir.Node] = []
        while self.at < close:
            if self.token.text == "..." or self.token.text in ("public", "private", "readonly", "protected"):
                self.at += 1
                continue
            target = self.binding()
            names += [target.id] if isinstance(target, ir.Name) else pattern_names(target)
            self.take("?")
            if self.take(":"):
                self.skip_type(("=", ","))
            if self.take("="):
                value = self.assignment()
                at = (target.line, target.start, value.end)
                if isinstance(target, ir.Name):
                    defaults.append(ir.Assign(*at, [target], ir.Group(*at, [target, value])))
            if not self.take(","):
                break
        self.at = close + 1 if close > 0 else self.at + 1
        return names, defaults

    def binding(self) -> ir.Node:
        """A name or a destructuring pattern."""
        token = self.token
        if token.text in ("[", "{"):
            names = [t for t in self.tokens[self.at + 1 : token.match] if t.kind is TokenKind.NAME]
            self.step_over()
            return ir.Seq(*self.place(token), [ir.Name(*self.place(t), t.text) for t in names])
        self.at += 1
        return ir.Name(*self.place(token), token.text)

    def _array(self) -> ir.Node:
        token = self.token
        close = token.match
        self.at += 1
        items: list[ir.Node] = []
        while self.at < close:
            if self.take(","):
                continue
            items.append(self.assignment())
            if not self.take(",") and self.at < close:
                self.at = close
        self.at = close + 1 if close > 0 else self.at
        return ir.Seq(token.line, token.start, self.preceding.end, items)

    def _object(self) -> ir.Node:
        token = self.token
        close = token.match
        self.at += 1
        items: list[tuple[str | None, ir.Node]] = []
        while self.at < close:
            before = self.at
            items.append(self._property())
            self.take(",")
            if self.at == before:
                self.at += 1
        self.at = close + 1 if close > 0 else self.at
        return ir.DictExpr(token.line, token.start, self.preceding.end, items)

    def _property(self) -> tuple[str | None, ir.Node]:
        if self.take("..."):
            return None, self.assignment()
        while self.token.text in ("async", "get", "set", "*") and self.following.text not in (
            ":",
            ",",
            "}",
            "(",
        ):
            self.at += 1
        token = self.token
        self.step_over()
        key = unquoted(token.text) if token.kind is TokenKind.STRING else None if token.text == "[" else token.text
        if self.token.text in ("(", "<"):
            params, body = self.function_rest()
            return key, ir.Lambda(*self.place(token), params, body)
        if self.take(":"):
            return key, self.assignment()
        return key, ir.Name(*self.place(token), token.text)

    def _template(self) -> ir.Node:
        token = self.token
        self.at += 1
        parts: list[ir.Node] = []
        for start, end, is_expression in template_parts(self.text, token.start, token.end):
            line = self.lexer.line_of(start)
            if is_expression:
                inner = type(self)(self.text, self.lexer, start, end)
                node = inner.expression()
                parts.append(ir.Formatted(line, start, end, node))
            elif end > start:
                parts.append(ir.Const(line, start, end, self.text[start:end], None))
        return ir.Concat(*self.place(token), parts)
