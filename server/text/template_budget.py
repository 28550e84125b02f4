"""What one rendering of a chat template may do, and what each of its operations costs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

MAX_OPERATIONS = 2_000_000
MAX_CHARACTERS = 64 << 20  # of all texts that one rendering makes or writes
MAX_SECONDS = 5.0
_MAX_DEPTH = 128
_MAX_NUMBER_BITS = 4096
_MAX_WIDTH = 1000  # of an indentation
_WIDE_FORMAT = re.compile(r"\*|\d{4}")
_TEXT_METHOD_NAMES = (
    "capitalize casefold count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric "
    "isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition "
    "rsplit rstrip split splitlines startswith strip swapcase title upper"
)
_TEXT_METHODS = frozenset(_TEXT_METHOD_NAMES.split())


class TemplateBudgetError(TemplateRuntimeError):
    """The template does more than rendering a conversation can need."""


class Budget:
    """What one rendering may still do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + MAX_SECONDS
        self._operations = 0
        self._characters = 0

    def charge(self, operations: int = 1, characters: int = 0) -> None:
        """Raises TemplateBudgetError when the operations, the characters or the time are used up."""
        self._operations += operations
        self._characters += characters
        if self._operations > MAX_OPERATIONS:
            raise TemplateBudgetError(f"the template does more than {MAX_OPERATIONS:,} operations")
        if self._characters > MAX_CHARACTERS:
            raise TemplateBudgetError(f"the template makes more than {MAX_CHARACTERS:,} characters of text")
        if self._clock() > self._deadline:
            raise TemplateBudgetError(f"the template runs for more than {MAX_SECONDS:g} seconds")

    def measure(self, value: Any) -> int:
        """Charge all of a value's texts and parts, each as often as it stands in the value; returns its characters."""
        open_values = [(value, 0)]
        characters = 0
        while open_values:
            part, depth = open_values.pop()
            if depth > _MAX_DEPTH:
                raise TemplateBudgetError(f"the template nests values more than {_MAX_DEPTH} deep")
            size = len(part) if isinstance(part, str) else 0
            characters += size
            self.charge(1, size)
            if isinstance(part, Mapping):
                open_values.extend((inner, depth + 1) for pair in part.items() for inner in pair)
            elif isinstance(part, list | tuple):
                open_values.extend((inner, depth + 1) for inner in part)
            elif isinstance(part, Namespace):
                raise TemplateBudgetError("the template writes a namespace, which may hold itself")
        return characters


def charged_values(values: Iterable[Any], budget: Budget) -> Iterator[Any]:
    """The values, each charged when it is taken."""
    for value in values:
        budget.charge()
        yield value


def charge_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Charge what ``left operator right`` will make; numbers may not become huge."""
    budget.charge()
    if isinstance(left, int) and isinstance(right, int):
        _refuse_huge(operator, left, right)
    elif operator == "*":
        times, repeated = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(times, int) and isinstance(repeated, str | list | tuple):
            budget.charge(0, max(times, 0) * len(repeated))
    elif operator == "%" and isinstance(left, str):
        charge_format(budget, left, left.count("%"), right)


def _refuse_huge(operator: str, left: int, right: int) -> None:
    power = operator == "**" and (right > _MAX_NUMBER_BITS or left.bit_length() * right > _MAX_NUMBER_BITS)
    product = operator == "*" and left.bit_length() + right.bit_length() > _MAX_NUMBER_BITS
    if power or product:
        raise TemplateBudgetError("the template computes a huge number")


def charge_text_method(budget: Budget, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method of a text, after charging what it will make."""
    if name not in _TEXT_METHODS:
        raise TemplateBudgetError(f"the template calls {name!r} of a text, which templates may not use")
    budget.charge(0, len(owner))
    if name == "replace" and len(args) >= 2:
        budget.charge(0, _replaced_characters(owner, args[0], args[1]))
    elif name == "join" and args:
        return (_joined_parts(budget, args[0], owner), *args[1:])
    return args


def charge_format(budget: Budget, layout: str, fields: int, values: Any) -> None:
    """Charge a formatted text as if each field held all the values."""
    if _WIDE_FORMAT.search(layout):
        raise TemplateBudgetError("the template formats with a width")
    budget.charge(0, len(layout) + fields * budget.measure(values))


def charge_filter(budget: Budget, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge what a filter will read and make."""
    value = args[0] if args else None
    budget.charge(len(value) if isinstance(value, list | tuple | dict | range) else 1)
    if name in ("join", "tojson", "string", "sum", "escape", "trim", "forceescape"):
        budget.measure(value)
    if name == "join" and isinstance(value, list | tuple):
        budget.charge(0, len(value) * len(str(_argument(args, kwargs, 1, "d", ""))))
    elif name == "replace" and isinstance(value, str):
        new = _argument(args, kwargs, 2, "new", "")
        budget.charge(0, _replaced_characters(value, _argument(args, kwargs, 1, "old", ""), new))
    elif name == "indent":
        width = _argument(args, kwargs, 1, "width", 4)
        size = len(width) if isinstance(width, str) else width
        if not isinstance(size, int) or size > _MAX_WIDTH:
            raise TemplateBudgetError("the template indents too far")
        budget.charge(0, size * (str(value).count("\n") + 1))


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: int, name: str, default: Any) -> Any:
    return args[index] if len(args) > index else kwargs.get(name, default)


def _replaced_characters(text: str, old: Any, new: Any) -> int:
    return (len(text) // max(len(str(old)), 1) + 1) * len(str(new)) if str(old) in text else 0


def _joined_parts(budget: Budget, parts: Iterable[Any], separator: str) -> list[Any]:
    collected = list(charged_values(parts, budget))
    budget.measure(collected)
    budget.charge(0, len(collected) * len(separator))
    return collected
