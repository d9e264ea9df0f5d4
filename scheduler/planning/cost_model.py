"""Predicts the GPU time of a range of a step's workgroups: a first guess, then measurements.

For every step key (kernel variant and work per workgroup) the model keeps the last times of ``n``
workgroups at several sizes of ``n``, half an octave apart. A prediction is the median at a size,
interpolated between sizes, and never falls with ``n``: on a wide GPU the time is flat until the
device is full, and linear from there.

A step learns only from times that tell its cost apart: its own, or the time of a group in which
the costs of all others are known. The time of a group is never divided by predictions, because
that would confirm every proportion of a wrong guess.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from cml_engine.compiler.plan import StepCost
from cml_engine.errors.arguments import check_instance, check_mapping
from cml_engine.io import write_atomically
from cml_engine.io.json_files import JsonObject, finite, read_json
from cml_engine.scheduler.clock import check_number

#: the least value of a divisor
_LEAST = 1e-9
_DEFAULTS = Path(__file__).with_name("defaults")


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """The assumed speed of a device as a roofline: FLOPs and bytes per ms, and a dispatch's cost.

    Work takes the longer of the times of its FLOPs and its bytes, plus ``launch_ms``.
    ``kernels`` has factors on that time, by the name of a kernel (``winograd``) or of one
    variant (``winograd-50be9931``, the second word of a step's key). The default values describe
    a slow integrated GPU, so that the first frames stay short.

    Examples
    --------
    >>> guess = FirstGuess(flops_per_ms=2e9, bytes_per_ms=3e8, source="an RX 6800 is assumed")
    >>> model = CostModel(guess=guess)
    """

    flops_per_ms: float = 2e7
    bytes_per_ms: float = 4e6
    launch_ms: float = 0.004
    kernels: Mapping[str, float] = field(default_factory=dict)
    source: str = "a slow integrated GPU is assumed"

    def __post_init__(self) -> None:
        check_number("flops_per_ms", self.flops_per_ms, above=True)
        check_number("bytes_per_ms", self.bytes_per_ms, above=True)
        check_number("launch_ms", self.launch_ms)
        kernels = check_mapping("factors by kernel, {'winograd': 2.0}", self.kernels, "kernels")
        for kernel, factor in kernels.items():
            check_number(f"the factor of '{kernel}'", factor, above=True)

    @classmethod
    def for_device(cls, name: str) -> FirstGuess:
        """Returns the shipped guess whose pattern matches the device's name, or the default."""
        for pattern, _, guess in _shipped():
            if re.search(pattern, name, re.IGNORECASE):
                return guess
        return cls()

    @classmethod
    def shipped_by_words(cls) -> list[tuple[str, FirstGuess]]:
        """Returns all shipped guesses, each after its words of device names, joined by ``|``.

        The last one has the default values, with "" as its words. docs/cooked.md says which
        guess a player uses.
        """
        return [*((words, guess) for _, words, guess in _shipped()), ("", cls())]

    @classmethod
    def from_json(cls, data: JsonObject) -> FirstGuess:
        """Returns the guess in a shipped file's JSON or in the result of :meth:`to_json`.

        Raises ``ValueError`` if numbers are missing or invalid.
        """
        try:
            return cls(
                finite(data["flops_per_ms"], _LEAST),
                finite(data["bytes_per_ms"], _LEAST),
                finite(data["launch_ms"], 0),
                {key: finite(value, _LEAST) for key, value in data["kernels"].items()},
                str(data["source"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a device's first guess: {error!r}") from error

    def to_json(self) -> JsonObject:
        """Returns the guess as a JSON object, for :meth:`from_json`."""
        return asdict(self)

    def work_ms(self, step: StepCost, count: int) -> float:
        """Returns the guessed ms of ``count`` workgroups of the step, without the launch."""
        work = max(step.flops / self.flops_per_ms, step.nbytes / self.bytes_per_ms)
        return count * work * self._factor(step.key)

    def _factor(self, key: str) -> float:
        variant = key.partition(" ")[2].partition(" ")[0]
        factor = self.kernels.get(variant)
        return factor if factor is not None else self.kernels.get(variant.rpartition("-")[0], 1.0)


@cache
def _shipped() -> list[tuple[str, str, FirstGuess]]:
    """Returns the name pattern, the words and the guess of each shipped file, by file name."""
    guesses = []
    for path in sorted(_DEFAULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        guess = FirstGuess.from_json(data)
        guesses.append((str(data["devices"]), str(data["words"]), guess))
    return guesses


_FORMAT = "cml cost table 4"
#: limits of the values in a table; anything else is not a measurement
_MOST_LOG, _MOST_COUNT = 28.0, 1e15
#: the last times at one size of which the median counts
_LAST = 15
#: a size is settled after this many times of its own; as many that are all longer or all shorter
#: than the median by this factor replace all before: a wrong belief is left at once
SETTLED, _CHANGED = 3, math.log(1.5)
#: the sizes of a step within this many half octaves of a settled one are settled too
_NEAR = 3
#: the relative error of a settled cost, and of one that is not: a guess may be off by 30 times
_KNOWN_ERROR, _UNKNOWN_ERROR = 0.1, 30.0
#: milliseconds of a slice for which a coarse clock shows 0, as those of browsers do
_SHORTEST = 1e-3
#: a group's time less the costs of the others is a time of a step if it is off by less than this
_MOST_ERROR = 0.2
#: ratios of steps' times to their first guesses of which the median scales all other guesses
_RATIOS = 15
#: measured guesses of the shipped tables count as this many ratios of 1
_GUESSED_SAMPLES = 4
#: only steps longer than this many launches say how fast the device computes
_TELLING = 8
#: logarithm of the largest factor between a device and the first guess
_MOST_UNKNOWN = math.log(1000)
#: logarithm of the largest error of one time that moves the drift, and the weight of one time
_CLIP, _DRIFT_WEIGHT = math.log(2.5), 1 / 32
#: one time changes the drift by at most _USUAL times the usual error plus _LITTLE: a hitch is
#: not a slow device
_USUAL, _LITTLE = 3.0, 0.1
#: cached predictions per step key
_KEPT = 256
#: step keys whose times are kept: enough for some hundred networks
_MOST_KEYS = 4096


#: the predicted ms of some workgroups of a step, the number of times that about as many were timed,
#: and True if that is often enough
Estimate: TypeAlias = tuple[float, int, bool]


def _clipped(error: float, limit: float) -> float:
    return max(-limit, min(limit, error))


def _median(values: Iterable[float]) -> float:
    """Returns the middle value, the lower one of two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


@dataclass(slots=True)
class _Size:
    """The last times of about ``exp(log_count)`` workgroups of a step, as logarithms of ms."""

    log_count: float
    log_times: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))
    #: the number of times so far
    samples: int = 0

    def learn(self, log_count: float, log_ms: float) -> None:
        usual = self.log_ms if self.log_times else 0.0
        # the number differs a little from the size's own
        self.log_times.append(log_ms - (log_count - self.log_count))
        self.samples += 1
        newest = list(self.log_times)[-SETTLED:]
        if min(newest) > usual + _CHANGED or max(newest) < usual - _CHANGED:
            self.log_times.clear()
            self.log_times.extend(newest)

    @property
    def log_ms(self) -> float:
        return _median(self.log_times)


@dataclass(slots=True)
class _Curve:
    """The time of one step key as a function of the number of workgroups.

    Predictions are cached, because a frame requests many for each time that is learned.
    """

    sizes: dict[int, _Size] = field(default_factory=dict)
    #: the cached results of :meth:`look_up`, by number of workgroups
    known: dict[int, Estimate] = field(default_factory=dict)
    #: logarithms of the workgroups and ms of the sizes that count, both ascending
    _at: list[float] = field(default_factory=list)
    _log_ms: list[float] = field(default_factory=list)
    #: the half octaves that are settled, or near one that is
    _settled: set[int] = field(default_factory=set)

    def look_up(self, count: int, launch_ms: float) -> Estimate:
        """Returns the estimate for ``count`` workgroups, with the logarithm of the ms."""
        if len(self.known) >= _KEPT:
            self.known.clear()
        log_ms, near = self.log_ms(count, launch_ms), bucket(count)
        size = self.sizes.get(near)
        known = self.known[count] = log_ms, size.samples if size else 0, near in self._settled
        return known

    def _order(self) -> None:
        """Prepares the sizes that count: the settled ones, or all if there are none."""
        near = range(-_NEAR, _NEAR + 1)
        settled = [number for number, size in self.sizes.items() if size.samples >= SETTLED]
        self._settled = {number + more for number in settled for more in near}
        sizes = [self.sizes[number] for number in settled]
        sizes = sorted(sizes or self.sizes.values(), key=lambda size: size.log_count)
        self._at = [size.log_count for size in sizes]
        self._log_ms = _ascending(
            [size.log_ms for size in sizes], [len(size.log_times) for size in sizes]
        )

    def log_ms(self, count: int, launch_ms: float) -> float:
        """Returns the logarithm of the ms of ``count`` workgroups."""
        if not self._at:
            self._order()
        at, log_ms, log_count = self._at, self._log_ms, math.log(count)
        above = bisect_left(at, log_count)
        if above == len(at) or (above == 0 and at[0] != log_count):
            # beyond the sizes, the time grows with the workgroups, but for the launch
            nearest = min(above, len(at) - 1)
            nearest_ms = math.exp(log_ms[nearest])
            fixed_ms = min(launch_ms, nearest_ms)
            ratio = math.exp(log_count - at[nearest])
            return math.log(fixed_ms + (nearest_ms - fixed_ms) * ratio)
        if at[above] == log_count:
            return log_ms[above]
        share = (log_count - at[above - 1]) / (at[above] - at[above - 1])
        return log_ms[above - 1] + share * (log_ms[above] - log_ms[above - 1])

    def learn(self, count: int, ms: float) -> None:
        self.known.clear()
        self._at.clear()
        log_count = math.log(count)
        size = self.sizes.setdefault(bucket(count), _Size(log_count))
        size.learn(log_count, math.log(ms))

    def count_at(self, log_target: float, launch_ms: float) -> float:
        """Returns how many workgroups take ``exp(log_target)`` ms, but for rounding."""
        if not self._at:
            self._order()
        at, log_ms = self._at, self._log_ms
        above = bisect_right(log_ms, log_target)
        if 0 < above < len(at):
            share = (log_target - log_ms[above - 1]) / (log_ms[above] - log_ms[above - 1])
            return math.exp(at[above - 1] + share * (at[above] - at[above - 1]))
        nearest = min(above, len(at) - 1)
        nearest_ms = math.exp(log_ms[nearest])
        fixed_ms = min(launch_ms, nearest_ms)
        ratio = (math.exp(log_target) - fixed_ms) / max(_LEAST, nearest_ms - fixed_ms)
        return math.exp(at[nearest]) * ratio


def bucket(count: int) -> int:
    """Returns the number of the half octave that a count of workgroups is in.

    All counts in one half octave share a size of the curve.
    """
    return round(2 * math.log2(count))


def _ascending(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns the closest values that never fall: the weighted means of neighbours that do."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        number = 1
        while blocks and blocks[-1][0] > value:
            before, before_weight, before_number = blocks.pop()
            value = (before * before_weight + value * weight) / (before_weight + weight)
            weight, number = before_weight + weight, before_number + number
        blocks.append((value, weight, number))
    return [value for value, _, number in blocks for _ in range(number)]


class CostModel:
    """Predicts the GPU time of slices and learns it from measurements, without a device or a clock.

    Parameters
    ----------
    guess : the assumed speed of steps that were never measured.

    Examples
    --------
    >>> model = cml.scheduler.CostModel()
    >>> step = network.program.step_costs()[0]
    >>> model.learn([(step, step.groups)], 0.5)
    >>> round(model.predict_ms(step, step.groups), 3)
    0.5
    """

    def __init__(self, guess: FirstGuess | None = None) -> None:
        self.guess = check_instance(FirstGuess, FirstGuess() if guess is None else guess, "guess")
        self._curves: dict[str, _Curve] = {}
        #: logarithms of measured over guessed times, of the steps measured last for the first time
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        if self.guess.kernels:
            self._ratios.extend([0.0] * _GUESSED_SAMPLES)
        #: the least settled time of any step, which is no less than that of a launch
        self._launch_ms = math.inf
        self._drift = 0.0
        self._error = _CLIP  # the usual difference of measurements from predictions
        #: the number of lessons; predictions change only when it does
        self.lessons = 0

    def predict_ms(self, step: StepCost, count: int) -> float:
        """Returns the predicted median milliseconds of ``count`` workgroups of the step."""
        if count <= 0:
            return 0.0
        curve = self._curves.get(step.key)
        if curve is None:
            return self._guess(step, count)
        known = curve.known.get(count)
        log_ms = curve.log_ms(count, self._least_launch_ms) if known is None else known[0]
        return math.exp(log_ms + self._drift)

    @property
    def _least_launch_ms(self) -> float:
        return min(self._launch_ms, self.guess.launch_ms)

    def remaining_ms(self, steps: Sequence[StepCost]) -> list[float]:
        """Returns for each step the predicted ms of it and all later ones, and 0 for the end."""
        each_ms = [
            self.estimate(step, step.groups)[0] if step.groups else 0.0 for step in reversed(steps)
        ]
        return [0.0, *accumulate(each_ms)][::-1]

    def estimate(self, step: StepCost, count: int) -> Estimate:
        """Returns the estimate for one or more workgroups of the step."""
        curve = self._curves.get(step.key)
        if curve is None:
            return self._guess(step, count), 0, False
        known = curve.known.get(count)
        if known is None:
            known = curve.look_up(count, self._least_launch_ms)
        log_ms, samples, is_settled = known
        return math.exp(log_ms + self._drift), samples, is_settled

    def _guess(self, step: StepCost, count: int) -> float:
        scale = math.exp(self._unknown + self._drift)
        return self.guess.launch_ms + self.guess.work_ms(step, count) * scale

    @property
    def _unknown(self) -> float:
        """The logarithm of measured over guessed times of steps that were never measured."""
        if not self._ratios:
            return 0.0
        return _clipped(_median(self._ratios), _MOST_UNKNOWN)

    def groups_within(self, step: StepCost, limit: int, ms: float) -> int:
        """Returns how many workgroups, up to ``limit``, are predicted to take at most ``ms``.

        Returns 0 if not even one fits.
        """
        if limit <= 0 or ms <= 0:
            return 0
        if self.predict_ms(step, limit) <= ms:
            return limit
        low, high, curve = 0, limit, self._curves.get(step.key)
        guesses = []
        if curve is not None:  # the search ends at once, unless the guess is off by rounding
            count = curve.count_at(math.log(ms) - self._drift, self._least_launch_ms)
            guess = int(min(count, limit))
            guesses = [guess + 1, guess]
        while high - low > 1:
            middle = guesses.pop() if guesses else (low + high) // 2
            if not low < middle < high:
                continue
            if self.predict_ms(step, middle) <= ms:
                low = middle
            else:
                high = middle
        return low

    def learn(self, parts: Sequence[tuple[StepCost, int]], ms: float) -> None:
        """Learns that the slices ``(step, count)`` in ``parts`` together took ``ms``.

        The time of one slice is a sample of its cost. The time of several is an equation: less
        the costs of the others, it is a sample of a slice whose cost is not settled, if the
        others are known well enough. An invalid time is ignored.
        """
        parts = [(step, count) for step, count in parts if count > 0]
        if not parts or not 0 <= ms < math.inf or (ms == 0 and len(parts) > 1):
            return
        self.lessons += 1
        estimates = [self.estimate(step, count) for step, count in parts]
        total_ms = sum([part_ms for part_ms, _, _ in estimates])
        all_settled = False not in [settled for _, _, settled in estimates]
        if all_settled and ms > 0:
            self._learn_drift(ms / total_ms)
        if len(parts) == 1:
            [(step, count)] = parts
            self._learn_step(step, count, max(ms, _SHORTEST))
            return
        if all_settled:
            return
        errors = [
            (_KNOWN_ERROR if settled else _UNKNOWN_ERROR) * part_ms
            for part_ms, _, settled in estimates
        ]
        variance = sum([error * error for error in errors])
        for (step, count), (part_ms, _, known), error in zip(parts, estimates, errors, strict=True):
            rest_ms = ms - (total_ms - part_ms)
            if not known and math.sqrt(max(0.0, variance - error * error)) < _MOST_ERROR * rest_ms:
                self._learn_step(step, count, rest_ms)

    def is_settled(self, step: StepCost, count: int) -> bool:
        """Returns True if the step was timed often enough at about ``count`` workgroups."""
        return self.estimate(step, count)[2]

    def is_measured(self, step: StepCost) -> bool:
        """Returns True if any slice of the step was timed."""
        return step.key in self._curves

    def _learn_step(self, step: StepCost, count: int, ms: float) -> None:
        curve = self._curves.pop(step.key, None)
        if curve is None:
            curve = _Curve()
            self._learn_ratio(step, count, ms)
        self._curves[step.key] = curve  # in the order in which they were last measured
        if len(self._curves) > _MOST_KEYS:
            del self._curves[next(iter(self._curves))]
        curve.learn(count, ms / self.drift)
        size = curve.sizes[bucket(count)]
        if size.samples >= SETTLED and (size_ms := math.exp(size.log_ms)) < self._launch_ms:
            self._launch_ms = size_ms
            for other in self._curves.values():
                other.known.clear()

    def _learn_ratio(self, step: StepCost, count: int, ms: float) -> None:
        """Learns from the first time of a step how far first guesses are off on this device."""
        work_ms = self.guess.work_ms(step, count)
        if work_ms > 0 and ms > _TELLING * self.guess.launch_ms:
            self._ratios.append(math.log((ms - self.guess.launch_ms) / work_ms) - self._drift)

    def _learn_drift(self, ratio: float) -> None:
        """Learns that settled steps took ``ratio`` times the predicted time."""
        error = _clipped(math.log(ratio), _CLIP)
        self._drift += _DRIFT_WEIGHT * _clipped(error, _LITTLE + _USUAL * self._error)
        self._error += _DRIFT_WEIGHT * (abs(error) - self._error)

    @property
    def drift(self) -> float:
        """The factor by which the whole device is slower now than when its steps were learned.

        1.3 means 30 % (clocks, heat, other programs). Every prediction includes it.
        """
        return math.exp(self._drift)

    # --- as data

    def to_json(self) -> JsonObject:
        """Returns the learned costs as JSON without rounding, for :meth:`from_json`.

        For each step key it has the sizes of its curve, ``[log of workgroups, samples, [logs of
        the last ms]]``; the key that was measured last is at the end.
        """
        return {
            "format": _FORMAT,
            "guess": self.guess.to_json(),
            "ratios": list(self._ratios),
            "launch_ms": self._launch_ms if math.isfinite(self._launch_ms) else None,
            "drift": self._drift,
            "error": self._error,
            "curves": {
                key: [[s.log_count, s.samples, list(s.log_times)] for s in curve.sizes.values()]
                for key, curve in self._curves.items()
            },
        }

    @classmethod
    def from_json(cls, data: object) -> CostModel:
        """Returns a model that predicts like the one whose :meth:`to_json` returned ``data``.

        Raises ``ValueError`` for anything else.
        """
        if not isinstance(data, Mapping) or data.get("format") != _FORMAT:
            raise ValueError(f"not a cost table (wanted format '{_FORMAT}')")
        try:
            model = cls(FirstGuess.from_json(data["guess"]))
            model._ratios.clear()
            model._ratios.extend(finite(ratio, -_MOST_LOG, _MOST_LOG) for ratio in data["ratios"])
            if data["launch_ms"] is not None:
                model._launch_ms = finite(data["launch_ms"], _LEAST)
            model._drift = finite(data["drift"], -_MOST_UNKNOWN, _MOST_UNKNOWN)
            model._error = finite(data["error"], 0, _MOST_LOG)
            for key, rows in data["curves"].items():
                model._curves[key] = _curve_of(rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a cost table: {error!r}") from error
        return model

    def save(self, path: str | Path) -> None:
        """Writes the learned costs to a JSON file, atomically."""
        write_atomically(path, json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: str | Path, guess: FirstGuess | None = None) -> CostModel:
        """Returns a model with the costs in a file, or a new one with ``guess`` without a file.

        A file that cannot be used causes a warning and also gives a new model.
        """
        try:
            return cls.from_json(read_json(path))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the learned costs in '{path}' are ignored: {error}. They are learned again",
                RuntimeWarning,
                stacklevel=2,
            )
        return cls(guess)


def _curve_of(rows: Iterable[Sequence[Any]]) -> _Curve:
    curve = _Curve()
    for log_count, samples, log_times in rows:
        size = _Size(finite(log_count, 0, math.log(_MOST_COUNT)))
        size.log_times.extend(finite(log_ms, -_MOST_LOG, _MOST_LOG) for log_ms in log_times)
        size.samples = int(finite(samples, len(size.log_times), _MOST_COUNT))
        if not size.log_times:
            raise ValueError("a size without times")
        curve.sizes[bucket(max(1, round(math.exp(size.log_count))))] = size
    if not curve.sizes:
        raise ValueError("a step without times")
    return curve
