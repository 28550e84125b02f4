"""Which files `.gitignore` leaves out: git's patterns, the nearest file's last match wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FILE = ".gitignore"


@dataclass(frozen=True, slots=True)
class _Rule:
    base: str  # the folder of its file, with a slash behind it
    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The rules that hold in a folder, those of outer folders first."""

    rules: tuple[_Rule, ...] = ()

    @classmethod
    def above(cls, folder: Path) -> IgnoreRules:
        """The rules of the folders around one, up to the root of its repository; none outside of a repository."""
        outer = [folder.resolve(), *folder.resolve().parents]
        root = next((i for i, parent in enumerate(outer) if (parent / ".git").exists()), None)
        rules = cls()
        for parent in reversed(outer[1 : root + 1] if root is not None else []):
            rules = rules.inside(parent)
        return rules

    def inside(self, folder: Path) -> IgnoreRules:
        """The rules with those of a folder's own file."""
        try:
            lines = (folder / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # there is none
            return self
        base = f"{folder.resolve().as_posix().rstrip('/')}/"
        own = (rule for line in lines if (rule := _rule(base, line)) is not None)
        return IgnoreRules((*self.rules, *own))

    def ignores(self, path: Path) -> bool:
        """Whether a file or folder is left out."""
        if not self.rules:
            return False
        whole = (path.parent.resolve() / path.name).as_posix()
        for rule in reversed(self.rules):
            matches = whole.startswith(rule.base) and rule.pattern.fullmatch(whole, len(rule.base))
            if matches and (not rule.folders_only or path.is_dir()):
                return not rule.keeps
        return False


def _rule(base: str, line: str) -> _Rule | None:
    """A line as a rule; None for a blank one or a comment."""
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    keeps = line.startswith("!")
    glob = line[keeps:].removeprefix("\\") if line[keeps:][:2] in ("\\#", "\\!") else line[keeps:]
    anchored = "/" in glob.rstrip("/")
    pattern = _translated(glob.strip("/"))
    try:
        return _Rule(base, re.compile(pattern if anchored else f"(?:.*/)?{pattern}"), keeps, glob.endswith("/"))
    except re.error:  # a class of characters that is none
        return None


_PIECES = re.compile(
    r"(?P<any>\*\*/)|(?P<below>/\*\*$)|(?P<star>\*+)|(?P<one>\?)|(?P<set>\[[!^]?\]?[^\]]*\])|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)
_FIXED = {"any": "(?:.*/)?", "below": "/.*", "star": "[^/]*", "one": "[^/]"}


def _translated(glob: str) -> str:
    """A glob as a regular expression."""
    return "".join(_piece(match) for match in _PIECES.finditer(glob))


def _piece(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    if kind != "set":
        return _FIXED.get(kind) or re.escape(match.group(kind))
    body = match.group()[1:-1]
    negated = body[:1] in ("!", "^")
    characters = re.escape(body[negated:]).replace("\\-", "-")
    return f"[^/{characters}]" if negated else f"[{characters}]"
