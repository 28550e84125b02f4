"""Reading tokens one after the other, and stepping over types."""

from __future__ import annotations

from .lexer import Lexer, Token, TokenKind


class TokenReader:
    """A place in a token list."""

    def __init__(self, text: str, lexer: Lexer, start: int = 0, end: int | None = None) -> None:
        self.text = text
        self.lexer = lexer
        self.tokens = lexer.tokens(start, end)
        self.at = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token at hand."""
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    @property
    def following(self) -> Token:
        """The one behind it; the last one has itself behind it."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    @property
    def preceding(self) -> Token:
        """The one before it."""
        return self.tokens[min(max(self.at, 1), len(self.tokens)) - 1]

    def take(self, text: str) -> bool:
        """Step over a token if it is `text`."""
        if self.token.text == text and self.token.kind is not TokenKind.STRING:
            self.at += 1
            return True
        return False

    def step_over(self) -> None:
        """Step over a token, and with an opening bracket over all up to its end, if it has one."""
        self.at = max(self.at, self.token.match) + 1

    @staticmethod
    def place(token: Token) -> tuple[int, int, int]:
        """Position of a token for a node."""
        return token.line, token.start, token.end

    # -- types

    def skip_type(self, stops: tuple[str, ...], *, newline: bool = False) -> None:
        """Step over a type up to one of the stops (or a line end) at depth 0."""
        first = True
        angles = 0
        while self.token.kind is not TokenKind.END:
            text = self.token.text
            if text == "<":
                angles += 1
            elif text in (">", ">>", ">>>"):
                angles = max(0, angles - len(text))
            elif (
                (
                    not first
                    and angles == 0
                    and text in stops
                    and not (text == "{" and self.preceding.text in ("|", "&", ":"))
                )
                or text in (")", "]", "}")
                or (newline and not first and self.token.after_newline and angles == 0)
            ):
                return
            self.step_over()
            first = False

    def generic_call(self) -> bool:
        """Step over `<T>` when a call follows it."""
        depth = 0
        for i in range(self.at, min(self.at + 60, len(self.tokens))):
            token = self.tokens[i]
            depth += (token.text == "<") - len(token.text) * (token.text in (">", ">>", ">>>"))
            if depth <= 0:
                if self.tokens[min(i + 1, len(self.tokens) - 1)].text == "(":
                    self.at = i + 1
                    return True
                return False
            if token.text in (";", "&&", "||", "+", "==", "===") or token.kind is TokenKind.END:
                return False
        return False

    def skip_angles(self) -> None:
        depth = 0
        while self.token.kind is not TokenKind.END:
            text = self.token.text
            depth += (text == "<") - len(text) * (text in (">", ">>", ">>>"))
            self.at += 1
            if depth <= 0:
                return
