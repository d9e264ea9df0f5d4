"""Numbers and words that callers give: whole or not, and from where to where; which there are.

One rule for the command line, which parses text, and for functions, which get numbers. Neither
takes nan or infinity, which compare with nothing and of which loops end never.
"""

from __future__ import annotations

import argparse
import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from typing import Any, TypeVar

from cml_engine.errors import InputError

T = TypeVar("T")

__all__ = [
    "BUDGET_MS",
    "NumberRange",
    "Real",
    "TIMES",
    "Whole",
    "an_object",
    "flag",
    "one_of",
    "some_of",
]


class NumberRange(ABC):
    """A range of numbers; called with a text it is a type of argparse's."""

    @abstractmethod
    def parse(self, text: str) -> float:
        """The number that a text is; :class:`InputError` says what is wanted."""

    def __call__(self, text: str) -> float:
        try:
            return self.parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(error.message) from None


@dataclass(frozen=True)
class Whole(NumberRange):
    """Whole numbers of ``low`` to ``high``."""

    low: int
    high: int

    def parse(self, text: str) -> int:
        try:
            return self.check(int(text))
        except ValueError:
            raise self._wanted(text) from None

    def check(self, value: Any, what: str = "") -> int:
        """``value``, if it is such a number; ``what`` it is begins the message."""
        try:
            number = operator.index(value)
        except TypeError:
            raise self._wanted(_quoted(value), what) from None
        if not self.low <= number <= self.high:
            raise self._wanted(_quoted(value), what)
        return number

    def _wanted(self, got: Any, what: str = "") -> InputError:
        return _wanted(f"a whole number of {self.low:,} to {self.high:,}", got, what)


@dataclass(frozen=True)
class Real(NumberRange):
    """Finite numbers of ``low`` to ``high``, of that ``unit``."""

    low: float
    high: float
    unit: str = ""

    def parse(self, text: str) -> float:
        try:
            return self.check(float(text))
        except ValueError:
            raise self._wanted(text) from None

    def check(self, value: Any, what: str = "") -> float:
        """``value``, if it is such a number; ``what`` it is begins the message."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._wanted(_quoted(value), what) from None
        if isinstance(value, str) or not self.low <= number <= self.high:  # nan is neither
            raise self._wanted(_quoted(value), what)
        return number

    def _wanted(self, got: Any, what: str = "") -> InputError:
        kind = f"{self.unit} of" if self.unit else "a number of"
        return _wanted(f"{kind} {self.low:,} to {self.high:,}", got, what)


def one_of(words: Sequence[str], value: Any, what: str) -> str:
    """``value``, if it is one of the words."""
    if not isinstance(value, str) or value not in words:
        raise _wanted(" or ".join(f"'{word}'" for word in words), repr(value), what)
    return value


def flag(value: Any, what: str) -> bool:
    """``value``, if it is True or False."""
    if not isinstance(value, bool):
        raise _wanted("True or False", repr(value), what)
    return value


def an_object(kind: type[T], value: Any, what: str) -> T:
    """``value``, if it is an object of that class."""
    if not isinstance(value, kind):
        raise _wanted(f"a {kind.__name__}", repr(value), what)
    return value


def text(value: Any, what: str) -> str:
    """``value``, if it is a text."""
    if not isinstance(value, str):
        raise _wanted("a text", repr(value), what)
    return value


def function(value: T, what: str) -> T:
    """``value``, if it can be called."""
    if not callable(value):
        raise _wanted("a function", repr(value), what)
    return value


def inputs_by_name(value: Any) -> Mapping[str, Any]:
    """``value``, if it is a dictionary by name."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        kind = type(value).__name__
        raise InputError(f"wanted inputs as a dictionary of arrays by name, got {kind}")
    return value


def some_of(words: Sequence[str], value: Any, what: str) -> frozenset[str]:
    """``value``, if it is a collection of some of the words; the error names the nearest first."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise _wanted(f"a set of names, {{'{words[0]}'}} for example", repr(value), what)
    for name in value:
        if name not in words:
            near = sorted(words, key=lambda w: -SequenceMatcher(None, str(name), w).ratio())
            raise _wanted(f"some of {', '.join(near)}", repr(name), what)
    return frozenset(value)


def names(value: Any, what: str) -> tuple[str, ...]:
    """``value``, if it is a tuple or list of names."""
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        raise _wanted("names in parentheses, ('conv1',) for example", repr(value), what)
    return tuple(value)


def some_names(value: Any, what: str) -> tuple[str, ...]:
    """``value``, if it is a tuple or list of names, at least one."""
    if not names(value, what):
        raise _wanted("at least one name", repr(value), what)
    return tuple(value)


def texts(value: Any, what: str) -> Mapping[str, str]:
    """``value``, if it is a dictionary of texts by name."""
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        raise _wanted("texts by name, {'conv1': 'tile'} for example", repr(value), what)
    return value


def check_names(given: Iterable[str], known: Collection[str], lacking: str, what: str) -> None:
    """Each of the names is known; the error, which says what is ``lacking``, names the nearest."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
            few = ", ".join(islice(known, 8)) + (", …" if len(known) > 8 else "")
            raise InputError(f"{what}: {lacking} '{name}'; {hint or f'it has {few}'}")


def shapes_by_name(given: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by the names of inputs, as tuples of whole numbers."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise _wanted("a dictionary of shapes by input, {'image': (1, 3, 64, 64)}", given, "shapes")
    return {name: _shape(name, shape) for name, shape in given.items()}


def _shape(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _wanted("extents like (1, 3, 64, 64)", repr(given), f"the shape of '{name}'")
    return tuple(ANY_EXTENT.check(extent, f"the shape of '{name}'") for extent in given)


#: the name under which a shape is given that is the only input's
ONLY_INPUT = ""


def named_shapes(
    shapes: Mapping[str, tuple[int, ...]], inputs: Mapping[str, object], model: str
) -> dict[str, tuple[int, ...]]:
    """The shapes by the names of the model's ``inputs``; one without a name is the only input's."""
    found = dict(shapes)
    if (only := found.pop(ONLY_INPUT, None)) is not None and ONLY_INPUT not in inputs:
        if len(inputs) != 1:
            listed, extents = ", ".join(inputs) or "none", ",".join(map(str, only))
            raise InputError(
                f"'{model}' has the inputs {listed}: say which has the shape, NAME={extents}"
            )
        found.setdefault(next(iter(inputs)), only)
    check_inputs_exist(found, inputs, model)
    return found


def check_inputs_exist(names: Iterable[str], inputs: Mapping[str, object], model: str) -> None:
    """Each of the names is one of the model's ``inputs``, whose values say what they are."""
    for name in names:
        if name not in inputs:
            near = get_close_matches(name, inputs, n=1)
            hint = f"did you mean '{near[0]}'? Its" if near else "its"
            listed = ", ".join(f"{known}: {what}" for known, what in inputs.items()) or "(none)"
            raise InputError(f"'{model}' has no input '{name}'; {hint} inputs are {listed}")


def _quoted(value: Any) -> Any:
    """A text of a program's in quotes: 7 and '7' are two things."""
    return repr(value) if isinstance(value, str) else value


def _wanted(wanted: str, got: Any, what: str) -> InputError:
    shown = str(got) if len(str(got)) <= 40 else f"{str(got)[:40]}…"
    return InputError(f"{what}: wanted {wanted}, got {shown}".removeprefix(": "))


#: how often something is measured, or how many frames it is watched
TIMES = Whole(1, 1_000_000)
SEED = Whole(0, 2**64 - 1)
BUDGET_MS = Real(0.001, 60_000, "milliseconds")
FRAME_MS = Real(0.1, 60_000, "milliseconds")
#: of a device on paper, against this one
SPEED = Real(0.001, 1000)
#: unused memory around a tensor
GUARD_BYTES = Whole(0, 1 << 30)
#: bytes that activations may take; 0 where a plan may take as many as it wants
ARENA_BYTES = Whole(0, 1 << 50)
ARENA_LIMIT = Whole(1, 1 << 50)
ARENA_LIMIT_MIB = Real(0.001, 1 << 30, "MiB")
EXTENT = Whole(1, 2**31 - 1)
#: networks at other shapes that stay compiled
SHAPES_KEPT = Whole(0, 1_000_000)
GAS = Whole(1, 2**63 - 1)
#: of tensors that may be empty
ANY_EXTENT = Whole(0, 2**31 - 1)
#: pixels of a tile that are thrown away
OVERLAP = Whole(0, 2**31 - 1)
#: any number of 32 bits
FINITE = Real(-3.4e38, 3.4e38)
#: of ONNX's operators, where a model is written
ONNX_OPSET = Whole(13, 28)
