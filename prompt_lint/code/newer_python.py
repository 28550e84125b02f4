"""Python that is newer than the one that runs: written in older syntax, character by character, so places stay.

What is rewritten: nested quotes and escapes in f-strings (PEP 701), template strings (PEP 750), type parameters and
`type` statements (PEP 695), `except A, B:` (PEP 758).
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"[A-Za-z]{0,2}\Z")
_PREFIXES = frozenset({"", "r", "b", "u", "f", "t", "rb", "br", "fr", "rf", "tr", "rt"})
_GENERIC = re.compile(r"\b(?:def|class)[ \t]+\w+[ \t]*(?=\[)")
_ALIAS = re.compile(r"^[ \t]*type(?P<gap>[ \t]+)\w+[ \t]*(?=[\[=])", re.MULTILINE)
_EXCEPT = re.compile(r"^[ \t]*except\b[^:\n(,]*,[^:\n(]*:", re.MULTILINE)
_OTHER = {'"': "'", "'": '"'}


def older_syntax(text: str) -> str:
    """A text of the same length and lines, in the syntax of Python 3.11 as far as that can be said in it."""
    return _Rewriting(text).result()


class _Rewriting:
    """One text that is being rewritten in place."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._out = list(text)
        self._code = list(text)  # with every string and comment blanked

    def result(self) -> str:
        """The rewritten text."""
        self._expression(0, ())
        code = "".join(self._code)
        for match in _GENERIC.finditer(code):
            self._blank(match.end(), _bracket_end(code, match.end()))
        for match in _ALIAS.finditer(code):
            self._put(match.start("gap"), "_" * len(match.group("gap")))
            if code[match.end()] == "[":
                self._blank(match.end(), _bracket_end(code, match.end()))
        for match in _EXCEPT.finditer(code):
            self._put(match.start(), match.group().replace(",", "+"))
        return "".join(self._out)

    def _put(self, start: int, text: str) -> None:
        self._out[start : start + len(text)] = text

    def _blank(self, start: int, end: int) -> None:
        self._put(start, re.sub(r"[^\n]", " ", self._text[start:end]))

    def _expression(self, at: int, quotes: tuple[str, ...]) -> int:
        """Code from `at` on; inside an f-string (where `quotes` are open) up to the end of its placeholder."""
        depth, text = 0, self._text
        while at < len(text):
            char = text[at]
            if char in "\"'":
                at = self._string(at, quotes)
                continue
            if char == "#" and not quotes:
                at = self._comment(at)
                continue
            depth += (char in "([{") - (char in ")]}")
            if quotes and depth < 0:
                return at + 1
            if quotes and depth == 0 and char == ":":
                return self._format(at + 1, quotes)
            at += 1
        return at

    def _comment(self, at: int) -> int:
        end = self._text.find("\n", at)
        end = len(self._text) if end < 0 else end
        self._code[at:end] = " " * (end - at)
        return end

    def _string(self, at: int, quotes: tuple[str, ...]) -> int:
        """A string literal whose first quote stands at `at`; returns where it ends."""
        text = self._text
        quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
        found = _PREFIX.search(text, max(0, at - 2), at)
        prefix = found.group().lower() if found and found.group().lower() in _PREFIXES else ""
        body = at + len(quote)
        wanted = self._quote_for(quote, quotes)
        if prefix.endswith("t") or prefix.startswith("t"):
            self._put(at - len(prefix), text[at - len(prefix) : at].replace("t", "f").replace("T", "F"))
        if set(prefix) & set("ft"):
            end = self._body(body, quote, (*quotes, wanted or quote))
        else:
            end = self._plain(body, quote)
        self._code[at:end] = re.sub(r"[^\n]", " ", text[at:end])
        if quotes:
            self._rewrite(at - len(prefix), at, end, quote, wanted)
        return end

    @staticmethod
    def _quote_for(quote: str, quotes: tuple[str, ...]) -> str | None:
        """The quote that a string inside open ones may have; None when all are taken."""
        choices = (quote, _OTHER[quote[0]] * len(quote))
        return next((choice for choice in choices if not any(_ends(choice, around) for around in quotes)), None)

    def _rewrite(self, start: int, at: int, end: int, quote: str, wanted: str | None) -> None:
        """Give a string inside an f-string its quote; nothing of its text may be a quote, or be escaped."""
        if wanted is None or "\n" in self._text[start:end]:
            self._put(start, "0" + re.sub(r"[^\n]", " ", self._text[start + 1 : end]))
            return
        if wanted != quote:
            self._put(at, wanted)
            self._put(end - len(quote), wanted)
        for i in range(at + len(quote), end - len(quote)):
            if self._out[i] == "\\" or (self._out[i] == self._text[i] == wanted):
                self._out[i] = "_"

    def _plain(self, at: int, quote: str) -> int:
        text = self._text
        while at < len(text):
            if text[at] == "\\":
                at += 2
            elif text.startswith(quote, at):
                return at + len(quote)
            else:
                at += 1
        return len(text)

    def _body(self, at: int, quote: str, quotes: tuple[str, ...]) -> int:
        """The text of an f-string up to its end."""
        text = self._text
        while at < len(text):
            if text[at] == "\\" or text.startswith(("{{", "}}"), at):
                at += 2
            elif text[at] == "{":
                at = self._expression(at + 1, quotes)
            elif text.startswith(quote, at):
                return at + len(quote)
            else:
                at += 1
        return len(text)

    def _format(self, at: int, quotes: tuple[str, ...]) -> int:
        """The format of a placeholder up to its end."""
        text = self._text
        while at < len(text):
            if text[at] == "}":
                return at + 1
            at = self._expression(at + 1, quotes) if text[at] == "{" else at + 1
        return len(text)


def _ends(quote: str, around: str) -> bool:
    """Whether a string with this quote would end the one around it."""
    return quote[0] == around[0] if len(around) == 1 else quote == around


def _bracket_end(code: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i + 1
    return len(code)
