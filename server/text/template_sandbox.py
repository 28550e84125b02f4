"""Jinja for chat templates: sandboxed, and bounded in time and in the size of what it builds.

A template comes with a model and is not to be trusted. Jinja's immutable sandbox keeps it away from Python's
internals; what is added here keeps it from running for ever or filling the memory: every loop iteration, call, filter
and operation is charged to a budget, and every text or list is measured before or as it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .template_budget import (
    Budget,
    charge_filter,
    charge_format,
    charge_operator,
    charge_text_method,
    charged_values,
)

_FILTER_NAMES = (
    "abs attr capitalize count d default dictsort e escape first float groupby indent int items join last length "
    "list lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title "
    "tojson trim unique upper"
)
_FILTERS = frozenset(_FILTER_NAMES.split())
_GLOBALS = frozenset({"range", "dict", "namespace", "cycler", "joiner"})


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
            args = charge_text_method(budget, owner, getattr(__obj, "__name__", ""), args)
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
            charge_format(self._budget.get(), layout, layout.count("{"), [*args, *kwargs.values()])
            return safe(*args, **kwargs)

        return charged

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget.get()
        charge_operator(budget, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            budget.measure(result)
        return result

    def _each(self, values: Iterable[Any]) -> Iterable[Any]:
        """The values of a loop, each charged; a list stays a list, whose length loops may ask for."""
        budget = self._budget.get()
        if hasattr(values, "__len__"):
            return _ChargedValues(values, budget)
        return charged_values(values, budget)

    def _measured(self, value: Any) -> Any:
        self._budget.get().measure(value)
        return value

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        takes_context = hasattr(function, "jinja_pass_arg")

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            positional = args[1:] if takes_context else args
            charge_filter(budget, name, positional, kwargs)
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
        return charged_values(self._values, self._budget)


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
