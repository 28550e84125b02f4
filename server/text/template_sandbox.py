"""Jinja for chat templates: sandboxed, and bounded in time and in the size of what it builds.

A template comes with a model and is not to be trusted. Jinja's immutable sandbox keeps it away from Python's
internals; what is added here keeps it from running for ever or filling the memory: every loop iteration, call, filter
and operation is charged to a budget, and every text or list is measured before or as it is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_OPERATIONS = 2_000_000
MAX_CHARACTERS = 64 << 20  # of all texts that one rendering makes or writes
MAX_SECONDS = 5.0
_MAX_NUMBER_BITS = 4096
_MAX_WIDTH = 1000  # of an indentation
_MAX_DEPTH = 128
_WIDE_FORMAT = re.compile(r"\*|\d{4}")

_FILTER_NAMES = (
    "abs attr capitalize count d default dictsort e escape first float groupby indent int items join last length "
    "list lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title "
    "tojson trim unique upper"
)
_FILTERS = frozenset(_FILTER_NAMES.split())
_GLOBALS = frozenset({"range", "dict", "namespace", "cycler", "joiner"})
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
        return characters


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that compiles and renders chat templates, with Hugging Face's conventions."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "//", "-", "/"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._budget: ContextVar[Budget] = ContextVar("template_budget")
        self.filters = {name: self._charged(name, self.filters[name]) for name in _FILTERS}
        self.filters["_each"] = self._each
        self.filters["_measured"] = self._measured
        self.globals = {name: self.globals[name] for name in _GLOBALS}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Put a filter of the caller's in place of Jinja's, charged like the others."""
        self.filters[name] = self._charged(name, function)

    @contextmanager
    def budget(self, budget: Budget) -> Iterator[None]:
        """Rendering inside this block is charged to ``budget``."""
        token = self._budget.set(budget)
        try:
            yield
        finally:
            self._budget.reset(token)

    def compile_charged(self, source: str) -> Any:
        """The template of ``source``, with its loops, texts and lists charged.

        Raises:
            jinja2.TemplateError: the source is no template, or uses what templates may not use.
        """
        tree = _Charging().visit(self.parse(source))
        code = self.compile(tree)
        return self.template_class.from_code(self, code, self.make_globals(None))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  as in Jinja
        budget = __self._budget.get()
        budget.charge()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _checked_text_call(budget, owner, getattr(__obj, "__name__", ""), args)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str | list | dict):
            budget.measure(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe ``format``, charged. The method of the text is found only here."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None
        layout = str(value.__self__)

        def charged(*args: Any, **kwargs: Any) -> str:
            _charge_format(self._budget.get(), layout, layout.count("{"), [*args, *kwargs.values()])
            return safe(*args, **kwargs)

        return charged

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget.get()
        budget.charge()
        if isinstance(left, int) and isinstance(right, int):
            _check_numbers(operator, left, right)
        elif operator == "*":
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and isinstance(repeated, str | list | tuple):
                budget.charge(0, max(times, 0) * len(repeated))
        elif operator == "%" and isinstance(left, str):
            _charge_format(budget, left, left.count("%"), right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            budget.measure(result)
        return result

    def _each(self, values: Iterable[Any]) -> Iterable[Any]:
        """The values of a loop, each charged; a list stays a list, whose length loops may ask for."""
        budget = self._budget.get()
        if hasattr(values, "__len__"):
            return _ChargedValues(values, budget)
        return _charged_values(values, budget)

    def _measured(self, value: Any) -> Any:
        self._budget.get().measure(value)
        return value

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        takes_context = hasattr(function, "jinja_pass_arg")

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            positional = args[1:] if takes_context else args
            _check_filter(budget, name, positional, kwargs)
            result = function(*args, **kwargs)
            if isinstance(result, str | list):
                budget.measure(result)
            else:
                budget.charge()
            return result

        return charged


class _ChargedValues:
    """A sized collection whose iteration is charged."""

    def __init__(self, values: Any, budget: Budget) -> None:
        self._values = values
        self._budget = budget

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return _charged_values(self._values, self._budget)


def _charged_values(values: Iterable[Any], budget: Budget) -> Iterator[Any]:
    for value in values:
        budget.charge()
        yield value


class GenerationTag(Extension):
    """``{% generation %}`` marks an assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  as in Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Charging(NodeTransformer):
    """Puts the budget's filters around what loops over values, joins texts, makes lists and writes."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(part, "_measured") for part in node.nodes]
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_measured")

    visit_Dict = visit_List  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [
            part if isinstance(part, nodes.TemplateData) else _filtered(part, "_measured") for part in node.nodes
        ]
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_numbers(operator: str, left: int, right: int) -> None:
    if operator == "**" and (right > _MAX_NUMBER_BITS or left.bit_length() * right > _MAX_NUMBER_BITS):
        raise TemplateBudgetError("the template computes a huge number")
    if operator == "*" and left.bit_length() + right.bit_length() > _MAX_NUMBER_BITS:
        raise TemplateBudgetError("the template computes a huge number")


def _checked_text_call(budget: Budget, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method of a text, after charging what it will make."""
    if name not in _TEXT_METHODS:
        raise TemplateBudgetError(f"the template calls {name!r} of a text, which templates may not use")
    budget.charge(0, len(owner))
    if name == "replace" and len(args) >= 2:
        budget.charge(0, _replaced_characters(owner, args[0], args[1]))
    elif name == "join" and args:
        return (_joined_parts(budget, args[0], owner), *args[1:])
    return args


def _charge_format(budget: Budget, layout: str, fields: int, values: Any) -> None:
    """Charge a formatted text as if each field held all the values."""
    if _WIDE_FORMAT.search(layout):
        raise TemplateBudgetError("the template formats with a width")
    budget.charge(0, len(layout) + fields * budget.measure(values))


def _check_filter(budget: Budget, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
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
    collected = list(_charged_values(parts, budget))
    budget.measure(collected)
    budget.charge(0, len(collected) * len(separator))
    return collected
