"""Statements of TypeScript and JavaScript. Tolerant: what it cannot read it skips to the next statement."""

from __future__ import annotations

from .. import ir
from .expressions import ExpressionParser
from .lexer import Lexer, TokenKind

_SKIPPED = {"interface", "declare", "enum", "abstract"}
_MODIFIERS = {
    "public",
    "private",
    "protected",
    "static",
    "readonly",
    "override",
    "async",
    "get",
    "set",
    "accessor",
    "declare",
    "abstract",
}


class Parser(ExpressionParser):
    """Parses one token list."""

    def __init__(self, text: str, lexer: Lexer, start: int = 0, end: int | None = None) -> None:
        super().__init__(text, lexer, start, end)
        self.imports: dict[str, str] = {}

    def statements(self, until: int | None = None) -> list[ir.Node]:
        """Statements up to the token index `until` (a closing brace) or the end."""
        limit = len(self.tokens) - 1 if until is None or until < 0 else until
        found: list[ir.Node] = []
        while self.at < limit:
            before = self.at
            node = self._statement()
            if node is not None:
                found.append(node)
            self.take(";")
            if self.at == before:
                self.at += 1
        self.at = limit
        return found

    def _statement(self) -> ir.Node | None:
        token = self.token
        if token.text == "@":
            self._decorator()
            return None
        if token.kind is TokenKind.NAME:
            handler = getattr(self, f"_on_{token.text}", None)
            is_keyword = token.text in _ALWAYS or self.following.text not in (".", "=", "(", ":", ",")
            if handler is not None and is_keyword:
                result: ir.Node | None = handler()
                return result
            if token.text in _SKIPPED or (token.text == "type" and self.following.kind is TokenKind.NAME):
                self._skip_declaration()
                return None
        if token.text == "{":
            return ir.Block(*self.place(token), self._braced())
        return self._expression_statement()

    def _expression_statement(self) -> ir.Node | None:
        node = self.expression()
        if isinstance(node, ir.Assign | ir.For):
            return node
        return ir.Do(node.line, node.start, node.end, node)

    def block_or_statement(self) -> list[ir.Node]:
        """The body of a loop or branch."""
        if self.token.text == "{":
            return self._braced()
        node = self._statement()
        self.take(";")
        return [node] if node else []

    def _braced(self) -> list[ir.Node]:
        close = self.token.match
        self.at += 1
        body = self.statements(close if close > 0 else None)
        self.take("}")
        return body

    def body_of_function(self) -> list[ir.Node]:
        """A braced body (expression bodies are read by arrows)."""
        return self._braced() if self.token.text == "{" else []

    # -- handlers, by keyword

    def _on_import(self) -> ir.Node | None:
        names: list[tuple[str, str]] = []
        self.at += 1
        while (
            self.token.kind is not TokenKind.END and self.token.kind is not TokenKind.STRING and self.token.text != ";"
        ):
            if self.token.kind is TokenKind.NAME and self.token.text not in ("from", "type", "as"):
                original = self.token.text
                if self.following.text == "as":
                    self.at += 2
                names.append((self.token.text, original))
            self.at += 1
        module = self.token.text.strip("\"'") if self.token.kind is TokenKind.STRING else ""
        for local, original in names:
            self.imports[local] = f"{module.removeprefix('node:')}.{original}"
        self.at += 1
        return None

    def _on_export(self) -> ir.Node | None:
        self.at += 1
        self.take("default")
        if self.token.text in ("*", "{"):
            while self.token.text != ";" and not self.following.after_newline and self.token.kind is not TokenKind.END:
                self.step_over()
            return None
        return self._statement()

    def _on_const(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        found: list[ir.Node] = []
        while True:
            target = self.binding()
            if self.take(":"):
                self.skip_type(("=", ",", ";"))
            if self.take("="):
                value = self.assignment()
                found.append(_binding_statement(target, value))
            if not self.take(","):
                break
        return found[0] if len(found) == 1 else ir.Block(*self.place(token), found)

    _on_let = _on_var = _on_const

    def _on_function(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        self.take("*")
        name = self.token.text
        self.at += 1
        params, body = self.function_rest()
        return ir.Def(*self.place(token), name, params, body)

    def _on_async(self) -> ir.Node | None:
        if self.following.text == "function":
            self.at += 1
            return self._on_function()
        return self._expression_statement()

    def _on_class(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        name = self.token.text
        while self.token.text != "{" and self.token.kind is not TokenKind.END:
            self.at += 1
        close = self.token.match
        self.at += 1
        body: list[ir.Node] = []
        while self.at < close:
            before = self.at
            member = self._member(name)
            if member is not None:
                body.append(member)
            self.take(";")
            if self.at == before:
                self.at += 1
        self.at = max(self.at, close + 1)
        return ir.ClassDef(*self.place(token), name, body)

    def _member(self, owner: str) -> ir.Node | None:
        if self.token.text == "@":
            self._decorator()
            return None
        is_property = False
        while self.token.text in _MODIFIERS and self.following.text not in ("(", "=", ":", ";", "?"):
            is_property = is_property or self.token.text == "get"
            self.at += 1
        self.take("*")
        token = self.token
        self.step_over()
        if self.token.text in ("?", "!"):
            self.at += 1
        if self.token.text in ("(", "<"):
            params, body = self.function_rest()
            return ir.Def(*self.place(token), token.text, params, body, owner=owner, is_property=is_property)
        if self.take(":"):
            self.skip_type(("=", ";"), newline=True)
        if self.take("="):
            value = self.assignment()
            if isinstance(value, ir.Lambda):
                return ir.Def(*self.place(token), token.text, value.params, value.body, owner=owner)
            target = ir.Attr(*self.place(token), ir.Name(*self.place(token), "this"), token.text)
            return ir.Assign(*self.place(token), [target], value)
        return None

    def _on_namespace(self) -> ir.Node | None:
        token = self.token
        while self.token.text not in ("{", ";") and self.token.kind is not TokenKind.END:
            self.at += 1
        return ir.Block(*self.place(token), self.body_of_function())

    def _on_if(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        body: list[ir.Node] = [self._parenthesised()]
        body += self.block_or_statement()
        otherwise = self.block_or_statement() if self.take("else") else []
        return ir.Block(*self.place(token), body, [otherwise])

    def _parenthesised(self) -> ir.Node:
        token = self.token
        close = token.match
        self.at += 1
        node = self.expression()
        self.at = close + 1 if close > 0 else self.at + 1
        return ir.Do(*self.place(token), node)

    def _on_while(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        return ir.Block(*self.place(token), [self._parenthesised(), *self.block_or_statement()])

    _on_switch = _on_with = _on_while

    def _on_do(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        body = self.block_or_statement()
        if self.take("while"):
            body.append(self._parenthesised())
        return ir.Block(*self.place(token), body)

    def _on_for(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        self.take("await")
        close = self.token.match
        self.at += 1
        if self.token.text in ("const", "let", "var"):
            self.at += 1
        target = self.binding() if self.token.kind is TokenKind.NAME or self.token.text in ("[", "{") else ir.Node()
        if self.token.text in ("of", "in"):
            self.at += 1
            source = self.expression()
            self.at = max(self.at, close + 1)
            return ir.For(*self.place(token), binding_names(target), source, self.block_or_statement())
        self.at = close + 1 if close > 0 else self.at + 1
        return ir.Block(*self.place(token), self.block_or_statement())

    def _on_try(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        body = self.block_or_statement()
        while self.token.text in ("catch", "finally"):
            always = self.token.text == "finally"
            self.at += 1
            if self.token.text == "(":
                self.step_over()
            after = self.block_or_statement()
            body += after if always else [ir.Block(*self.place(token), [], [after])]
        return ir.Block(*self.place(token), body)

    def _on_return(self) -> ir.Node | None:
        token = self.token
        self.at += 1
        if self.token.after_newline or self.token.text in (";", "}"):
            return None
        return ir.Return(*self.place(token), self.expression())

    def _on_throw(self) -> ir.Node | None:
        self.at += 1
        return ir.Do(*self.place(self.token), self.expression())

    def _on_case(self) -> ir.Node | None:
        self.at += 1
        self.expression()
        self.take(":")
        return None

    def _on_default(self) -> ir.Node | None:
        self.at += 1
        self.take(":")
        return None

    def _decorator(self) -> None:
        self.at += 2
        while self.token.text == ".":
            self.at += 2
        if self.token.text == "(":
            self.step_over()

    def _skip_declaration(self) -> None:
        self.at += 1
        while self.token.kind is not TokenKind.END:
            if self.token.text == "{":
                self.step_over()
                return
            if self.token.text == ";" or (
                self.token.after_newline and self.preceding.text not in ("=", "|", "&", ",", "(", "<")
            ):
                return
            self.at += 1


_ALWAYS = {
    "import",
    "export",
    "const",
    "let",
    "var",
    "function",
    "class",
    "if",
    "for",
    "while",
    "switch",
    "do",
    "try",
    "return",
    "throw",
    "case",
}


def _binding_statement(target: ir.Node, value: ir.Node) -> ir.Node:
    """`const f = () => …` is a function of that name."""
    if isinstance(target, ir.Name) and isinstance(value, ir.Lambda):
        return ir.Def(
            target.line, target.start, value.end, target.id, [p for p in value.params if p != "#async"], value.body
        )
    return ir.Assign(target.line, target.start, value.end, [target], value)


def binding_names(target: ir.Node) -> list[str]:
    """The names that a pattern binds."""
    if isinstance(target, ir.Name):
        return [target.id]
    if isinstance(target, ir.Seq):
        return [name for item in target.items for name in binding_names(item)]
    return []


def read_javascript(text: str) -> ir.Module:
    """Parse TypeScript or JavaScript. Never fails; what cannot be read is left out."""
    parser = Parser(text, Lexer(text))
    return ir.Module(parser.statements(), parser.imports)
