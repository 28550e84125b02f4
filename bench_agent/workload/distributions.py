"""Distributions as one writes them: ``48``, ``uniform:0,0.4``, ``exp:0.2``, ``normal:100,20``, ``lognormal:40,0.8``."""

from __future__ import annotations

import enum
import math
import random

import msgspec

from ..errors import BenchError


class Shape(enum.StrEnum):
    """The family, by the word that names it."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    EXPONENTIAL = "exp"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"


_NUM_PARAMETERS = {Shape.FIXED: 1, Shape.UNIFORM: 2, Shape.EXPONENTIAL: 1, Shape.NORMAL: 2, Shape.LOGNORMAL: 2}


class Distribution(msgspec.Struct, frozen=True):
    """A distribution of numbers that are not negative.

    ``a``, ``b``: the value; the bounds; the mean; mean and deviation; median and sigma of the logarithm. What is
    sampled beyond ``least`` or ``most`` becomes that bound.
    """

    shape: Shape
    a: float
    b: float = 0.0
    least: float = 0.0
    most: float | None = None

    def sample(self, rng: random.Random) -> float:
        """One number, 0 or more."""
        match self.shape:
            case Shape.FIXED:
                value = self.a
            case Shape.UNIFORM:
                value = rng.uniform(self.a, self.b)
            case Shape.EXPONENTIAL:
                value = rng.expovariate(1 / self.a) if self.a else 0.0
            case Shape.NORMAL:
                value = rng.gauss(self.a, self.b)
            case Shape.LOGNORMAL:
                value = self.a * rng.lognormvariate(0, self.b)
        value = max(self.least, value)
        return value if self.most is None else min(self.most, value)

    def count(self, rng: random.Random, least: int = 1) -> int:
        """One whole number, ``least`` or more."""
        return max(least, round(self.sample(rng)))

    def scaled(self, factor: float) -> Distribution:
        """The same distribution of numbers ``factor`` times as large."""
        b = self.b if self.shape is Shape.LOGNORMAL else self.b * factor
        most = None if self.most is None else self.most * factor
        return Distribution(self.shape, self.a * factor, b, self.least * factor, most)

    def __str__(self) -> str:
        if self.shape is Shape.FIXED:
            return f"{self.a:g}"
        b = f",{self.b:g}" if _NUM_PARAMETERS[self.shape] == 2 else ""
        return f"{self.shape}:{self.a:g}{b}"


def fixed(value: float) -> Distribution:
    """Always ``value``."""
    return Distribution(Shape.FIXED, value)


def parse_distribution(text: str) -> Distribution:
    """Raises BenchError for what is none."""
    word, _, rest = text.partition(":")
    shape, numbers = (word, rest) if rest else (Shape.FIXED.value, word)
    try:
        family = Shape(shape)
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        raise _refuse(text) from None
    fits = len(values) == _NUM_PARAMETERS[family] and all(0 <= value < math.inf for value in values)
    if not fits or (family is Shape.UNIFORM and values[0] > values[1]):
        raise _refuse(text)
    return Distribution(family, *values)


def _refuse(text: str) -> BenchError:
    return BenchError(
        f"{text!r} is not a distribution",
        remedy="write 0.2, uniform:0,0.4, exp:0.2, normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA",
    )
