"""Errors of prompt-lint.

LintError
├── UnusableInput   a file, line or body that cannot be read (exit status 2)
└── LintConfigError a wrong option or configuration key (exit status 2)
"""

from __future__ import annotations


class LintError(Exception):
    """Base of everything that prompt-lint raises on purpose."""


class UnusableInput(LintError):
    """Input that cannot be read; names the file and, where known, the line."""

    def __init__(self, file: str, reason: str, line: int | None = None) -> None:
        self.file = file
        self.reason = reason
        self.line = line
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")


class LintConfigError(LintError):
    """A wrong option or configuration key."""
