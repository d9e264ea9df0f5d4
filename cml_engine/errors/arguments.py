"""Checks of arguments: number ranges, allowed words, types and names.

Each ``check_…`` function returns the valid value and raises :class:`InputError` for any other.
``what`` is the argument's name, with which the message begins. The command line, which parses text,
and Python functions, which receive values, use the same checks. Numbers are never NaN or infinite:
NaN is not ordered, and an infinite count never ends a loop.
"""

from __future__ import annotations

import argparse
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from cml_engine.errors import InputError, Source

#: the names of ``cml.CompileOptions.preset``
Preset = Literal["shipping", "debug", "smallest"]

T = TypeVar("T")
N = TypeVar("N", int, float)
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class NumberRange(ABC, Generic[N]):
    """A range of numbers; an instance can be used as the ``type`` of an argparse argument.

    Examples
    --------
    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> option = parser.add_argument("--workers", type=IntegerRange(1, 64))
    """

    low: N
    high: N
    #: what the numbers are, for messages
    unit: str = "a number"

    def parse(self, text: str) -> N:
        """Returns the number that a text states.

        Raises :class:`InputError`, which states the range, for any other text.
        """
        try:
            return self.check(self._number(text))
        except ValueError:
            raise self._wrong_value(text) from None

    def check(self, value: Any, what: str = "") -> N:
        """Returns ``value`` as a number; raises :class:`InputError` if it is none in the range.

        The error message begins with ``what``, the argument's name.
        """
        try:
            number = self._number(value)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong_value(_quoted(value), what) from None
        if isinstance(value, str) or not self.low <= number <= self.high:  # also refuses NaN
            raise self._wrong_value(_quoted(value), what)
        return number

    @abstractmethod
    def _number(self, value: Any) -> N:
        """Returns a value or a text as a number; may raise TypeError or ValueError."""

    def _wrong_value(self, value: object, name: str = "") -> InputError:
        return _wrong_value(f"{self.unit} of {self.low:,} to {self.high:,}", value, name)

    def __call__(self, text: str) -> N:
        try:
            return self.parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(error.message) from None


@dataclass(frozen=True)
class IntegerRange(NumberRange[int]):
    """Integers from ``low`` to ``high``.

    Examples
    --------
    >>> IntegerRange(1, 64).check(8, "workers")
    8
    """

    unit: str = "a whole number"

    def _number(self, value: Any) -> int:
        return int(value) if isinstance(value, str) else operator.index(value)


class FloatRange(NumberRange[float]):
    """Finite numbers from ``low`` to ``high``; ``unit`` is named in messages.

    Examples
    --------
    >>> FloatRange(0, 100, "ms").parse("4.5")
    4.5
    """

    def _number(self, value: Any) -> float:
        return float(value)


def check_choice(words: Sequence[str], value: object, what: str) -> str:
    """Returns ``value`` if it is one of the words; otherwise raises :class:`InputError`.

    Examples
    --------
    >>> check_choice(("float", "half"), "half", "storage")
    'half'
    """
    if not isinstance(value, str) or value not in words:
        raise _wrong_value(" or ".join(f"'{word}'" for word in words), repr(value), what)
    return value


def check_number_of(numbers: Sequence[int], value: object, what: str) -> int:
    """Returns ``value`` if it is one of the integers; otherwise raises :class:`InputError`.

    Examples
    --------
    >>> check_number_of((8, 4), 8, "bits")
    8
    """
    with suppress(TypeError):
        number = operator.index(value)  # type: ignore[arg-type]  # the error is looked for
        if number in numbers:
            return number
    raise _wrong_value(" or ".join(map(str, numbers)), repr(value), what)


def check_flag(value: object, what: str) -> bool:
    """Returns ``value`` if it is True or False; otherwise raises :class:`InputError`.

    Examples
    --------
    >>> check_flag(True, "trusted")
    True
    """
    if not isinstance(value, bool):
        raise _wrong_value("True or False", repr(value), what)
    return value


def check_instance(kind: type[T], value: object, what: str) -> T:
    """Returns ``value`` if it is an instance of ``kind``; otherwise raises :class:`InputError`.

    Examples
    --------
    >>> check_instance(int, 3, "count")
    3
    """
    if not isinstance(value, kind):
        raise _wrong_value(f"a {kind.__name__}", repr(value), what)
    return value


def check_instances(kind: type[T], values: object, what: str) -> tuple[T, ...]:
    """Returns ``values`` as a tuple if they are an iterable of instances of ``kind``.

    Otherwise raises :class:`InputError`.
    """
    listed = _listed(values, f"a list of {kind.__name__}", what)
    return tuple(check_instance(kind, value, what) for value in listed)


def _listed(values: object, expected: str, what: str) -> tuple[object, ...]:
    """Returns an iterable that is no text as a tuple; raises :class:`InputError` for others."""
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        return tuple(values)  # type: ignore[arg-type]  # the error is what is looked for
    except TypeError:
        raise _wrong_value(expected, repr(values), what) from None


def check_mapping(example: str, value: object, what: str) -> Mapping[str, Any]:
    """Returns ``value`` if it is a mapping whose keys are strings.

    Otherwise raises :class:`InputError`, which shows the example. The values are not checked.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong_value(f"a dictionary of {example}", repr(value), what)
    return value


def check_path(value: object, what: str) -> Path:
    """Returns ``value`` as a path; raises :class:`InputError` if it is none, or holds a NUL."""
    if not isinstance(value, str | PathLike) or "\0" in str(value):
        raise _wrong_value("a path", repr(value), what)
    return Path(value)


def check_paths(values: object, what: str) -> tuple[Path, ...]:
    """Returns a list of paths as a tuple; raises :class:`InputError` for anything else."""
    return tuple(check_path(value, what) for value in _listed(values, "a list of paths", what))


def check_callable(value: F, what: str) -> F:
    """Returns ``value`` if it can be called; otherwise raises :class:`InputError`."""
    if not callable(value):
        raise _wrong_value("a function", repr(value), what)
    return value


def check_text(value: object, what: str) -> str:
    """Returns ``value`` if it is a string; otherwise raises :class:`InputError`."""
    if not isinstance(value, str):
        raise _wrong_value("a text", repr(value), what)
    return value


def check_input_mapping(value: object) -> Mapping[str, object]:
    """Returns ``value`` if it is a mapping of inputs by name; else raises :class:`InputError`."""
    return check_mapping("arrays by name, {'image': array}", value, "inputs")


def check_choices(words: Sequence[str], value: object, what: str) -> frozenset[str]:
    """Returns ``value`` as a frozenset if it is a collection and each item is one of ``words``.

    Otherwise raises :class:`InputError`. The message lists the allowed words, the most similar
    first.

    Examples
    --------
    >>> sorted(check_choices(("fuse", "fold"), ["fuse"], "passes"))
    ['fuse']
    """
    if isinstance(value, str) or not isinstance(value, Set | Sequence | Mapping):
        raise _wrong_value(f"a set of names, {{'{words[0]}'}} for example", repr(value), what)
    for name in value:
        if not isinstance(name, str) or name not in words:
            similar = sorted(words, key=lambda w: -SequenceMatcher(None, str(name), w).ratio())
            raise _wrong_value(f"some of {', '.join(similar)}", repr(name), what)
    return frozenset(value)


def check_name_list(value: object, what: str) -> tuple[str, ...]:
    """Returns a tuple or list of strings as a tuple.

    Raises :class:`InputError` for any other value.
    """
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        raise _wrong_value("names in parentheses, ('conv1',) for example", repr(value), what)
    return tuple(value)


def check_nonempty_names(value: object, what: str) -> tuple[str, ...]:
    """Returns ``value`` as a tuple if it is a non-empty tuple or list of strings.

    Otherwise raises :class:`InputError`.
    """
    names = check_name_list(value, what)
    if not names:
        raise _wrong_value("at least one name", repr(value), what)
    return names


def check_known_names(
    names: Iterable[str], allowed: Collection[str], lacking: str, what: str
) -> None:
    """Raises :class:`InputError` if a given name is not known; suggests similar names.

    ``lacking`` is the part of the message that states what is missing.
    """
    for name in names:
        if name not in allowed:
            similar = similar_names(name, allowed, n=3)
            hint = f"did you mean {' or '.join(repr(n) for n in similar)}?" if similar else ""
            first_names = ", ".join(islice(allowed, 8)) + (", …" if len(allowed) > 8 else "")
            raise InputError(f"{what}: {lacking} '{name}'; {hint or f'it has {first_names}'}")


def check_shapes(shapes: object) -> dict[str, tuple[int, ...]]:
    """Returns a caller's shapes by input name, each as a tuple of integers.

    Raises :class:`InputError` if it is no mapping from strings to shapes.
    """
    by_name = check_mapping("shapes by input, {'image': (1, 3, 64, 64)}", shapes, "shapes")
    return {name: check_shape(shape, f"the shape of '{name}'") for name, shape in by_name.items()}


def check_shape(shape: object, what: str) -> tuple[int, ...]:
    """Returns a shape as a tuple of integers; raises :class:`InputError` for anything else."""
    extents = _listed(shape, "extents like (1, 3, 64, 64)", what)
    return tuple(ANY_EXTENT.check(extent, what) for extent in extents)


#: the key of a shape that is given without a name, for the only input
ONLY_INPUT = ""


def resolve_shapes(
    shapes: Mapping[str, tuple[int, ...]], inputs: Mapping[str, object], model: str
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes by input name; a shape without a name goes to the model's only input.

    Raises :class:`InputError` if a name is not in ``inputs``, or if the model has several inputs
    and a shape has no name.
    """
    resolved = dict(shapes)
    if (unnamed := resolved.pop(ONLY_INPUT, None)) is not None and ONLY_INPUT not in inputs:
        if len(inputs) != 1:
            names, extents = ", ".join(inputs) or "none", ",".join(map(str, unnamed))
            raise InputError(
                f"'{model}' has the inputs {names}: say which has the shape, NAME={extents}"
            )
        resolved.setdefault(next(iter(inputs)), unnamed)
    check_inputs_exist(resolved, inputs, model)
    return resolved


def check_rank(
    name: str, requested_shape: tuple[int, ...], rank: int, stated_text: str, source: Source | None
) -> None:
    """Raises :class:`InputError` unless an input's requested shape has ``rank`` extents.

    ``stated_text`` is the model's shape, for the message.
    """
    if len(requested_shape) != rank:
        raise InputError(
            f"the shape {list(requested_shape)} of '{name}' has {len(requested_shape)} extents, "
            f"the model wants {stated_text}",
            source,
        )


def check_inputs_exist(names: Iterable[str], inputs: Mapping[str, object], model: str) -> None:
    """Raises :class:`InputError` if a name is not one of the model's ``inputs``.

    The values of ``inputs`` describe the inputs in the message.
    """
    for name in names:
        if name not in inputs:
            hint = suggestion(name, inputs)
            hint = f"{hint} Its" if hint else "its"
            input_list = (
                ", ".join(
                    f"{input_name}: {description}" for input_name, description in inputs.items()
                )
                or "(none)"
            )
            raise InputError(f"'{model}' has no input '{name}'; {hint} inputs are {input_list}")


def suggestion(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Returns the question ``did you mean 'x'?`` with a similar one of the names.

    Returns ``otherwise`` if no name is similar.
    """
    similar = similar_names(name, names)
    return f"did you mean '{similar[0]}'?" if similar else otherwise


#: the most characters of a name for which similar ones are searched, which takes quadratic time
_LONGEST_NAME = 200


def similar_names(name: str, names: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Returns up to ``n`` of the names that are similar to the given one, the best first.

    ``cutoff`` is the least similarity, from 0 to 1. A very long name has no similar ones.
    """
    return get_close_matches(name, names, n, cutoff) if len(name) <= _LONGEST_NAME else []


def _quoted(value: object) -> object:
    """Returns a string in quotes, to distinguish '7' from 7 in messages; other values unchanged."""
    return repr(value) if isinstance(value, str) else value


def _wrong_value(expected: str, value: object, name: str) -> InputError:
    return InputError(f"{name}: wanted {expected}, got {shortened(value)}".removeprefix(": "))


def shortened(value: object) -> str:
    """Returns a value as one line for a message, cut with "…" after 40 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:40]}…"


#: the number of repetitions of a measurement, or of observed frames
TIMES = IntegerRange(1, 1_000_000)
SEED = IntegerRange(0, 2**64 - 1)
RANDOM_SEED = IntegerRange(0, 2**32 - 1)
BUDGET_MS = FloatRange(0.001, 60_000, "milliseconds")
FRAME_MS = FloatRange(0.1, 60_000, "milliseconds")
#: the speed of a simulated device relative to this one
SPEED = FloatRange(0.001, 1000)
#: unused memory around a tensor
GUARD_BYTES = IntegerRange(0, 1 << 30)
#: the most bytes of activations; 0 for no limit
ARENA_BYTES = IntegerRange(0, 1 << 50)
ARENA_LIMIT = IntegerRange(1, 1 << 50)
CPU_THREADS = IntegerRange(1, 4096)
ARENA_LIMIT_MIB = FloatRange(0.001, 1 << 30, "MiB")
EXTENT = IntegerRange(1, 2**31 - 1)
#: the worker processes of a cluster, the inputs that one computes at once, its price for an hour
WORKERS = IntegerRange(1, 100_000)
BATCH = IntegerRange(1, 4096)
PRICE = FloatRange(0.0001, 1_000_000)
#: the number of networks at other shapes that stay compiled
SHAPES_KEPT = IntegerRange(0, 1_000_000)
GAS = IntegerRange(1, 2**63 - 1)
#: the largest error of a quantized network's outputs, as a share of their size
ERROR_SHARE = FloatRange(1e-12, 1000, "a share")
#: an extent of a tensor that may be empty
ANY_EXTENT = IntegerRange(0, 2**31 - 1)
#: discarded pixels at each end of a tile
OVERLAP = IntegerRange(0, 2**31 - 1)
#: the random divisions of a kernel's workgroups that a check tries
PARTITIONS = IntegerRange(0, 10_000)
SECONDS = FloatRange(0, 1e6, "seconds")
#: any finite float32
FINITE = FloatRange(-3.4e38, 3.4e38)
#: the opset version of a written ONNX model
ONNX_OPSET = IntegerRange(13, 28)
