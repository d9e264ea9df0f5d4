"""Predicts the GPU time of a range of a step's workgroups: a first guess, then measurements.

For every step key (kernel variant and work per workgroup) the model keeps the time of ``n``
workgroups at several sizes of ``n``, half an octave apart, and interpolates: on a wide GPU the
time is flat until the device is full, and linear from there. Learning is in the logarithm, so one
slow frame does not outweigh many: the prediction is the median. The spread of whole frames is kept
in :class:`scheduler.planning.margin.TailMargin`.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from cml_engine.compiler.plan import StepCost
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.json_files import JsonObject, finite, read_json
from scheduler.planning.margin import TailMargin

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
    """

    flops_per_ms: float = 2e7
    bytes_per_ms: float = 4e6
    launch_ms: float = 0.004
    kernels: Mapping[str, float] = field(default_factory=dict)
    source: str = "a slow integrated GPU is assumed"

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


_FORMAT = "cml cost table 3"
#: limits of the values in a table; anything else is not a measurement
_MOST_LOG, _MOST_COUNT = 28.0, 1e15
#: after this many samples the newest one always weighs the same
_MEMORY = 48
#: shipped numbers per kernel count as this many samples of the device's speed
_GUESSED_SAMPLES = 4
#: only steps longer than this many launches say how fast the device computes
_TELLING = 8
#: logarithm of the largest factor between a device and the first guess
_MOST_UNKNOWN = math.log(100)
#: logarithm of the factor to which the error of a sample is clipped once there are a few samples
_CLIP = math.log(2.5)
_CLIP_AFTER = 4
#: one frame changes the drift by at most _USUAL times the usual error plus _LITTLE: a hitch is
#: not a slow device
_USUAL, _LITTLE = 3.0, 0.1
#: the same limit for one kernel, once it has _SETTLED samples
_SOME, _SETTLED = 0.2, 12
#: the share of an error that is attributed to the whole device at once
_DRIFT_WEIGHT = 1 / 32
#: the weight of a sample at the other numbers of workgroups
_COMMON = 0.5
#: cached predictions per step key
_KEPT = 256
#: step keys whose times are kept: enough for some hundred networks
_MOST_KEYS = 4096


def _clipped(error: float, limit: float) -> float:
    return max(-limit, min(limit, error))


@dataclass(slots=True)
class _Point:
    """The learned logarithm of the time (ms) of about ``exp(log_count)`` workgroups of a step."""

    log_count: float
    log_ms: float
    samples: int = 1
    spread: float = 0.0

    def learn(self, log_count: float, log_ms: float) -> float:
        """Moves :attr:`log_ms` towards a sample and returns the distance that it moved."""
        self.samples += 1
        weight = 1 / min(self.samples, _MEMORY)
        # the sample's size differs a little from the point's: compare at the point's size
        error = log_ms - (log_count - self.log_count) - self.log_ms
        if self.samples > _CLIP_AFTER:
            error = _clipped(error, _CLIP)
        limited = error
        if self.samples > _SETTLED:
            limited = _clipped(error, _SOME + _USUAL * self.spread)
        self.log_ms += weight * limited
        self.spread += weight * (abs(error) - self.spread)
        return weight * limited


@dataclass(slots=True)
class _Curve:
    """The time of one step key as a function of the number of workgroups.

    Predictions are cached, because a frame requests many for each time that is learned.
    """

    points: dict[int, _Point] = field(default_factory=dict)
    #: the cached results of :meth:`predict`, by number of workgroups
    known: dict[int, float] = field(default_factory=dict)
    _order: list[_Point] = field(default_factory=list)
    _at: list[float] = field(default_factory=list)
    #: the number of measurements at all points
    samples: int = 0

    def predict(self, count: int) -> float | None:
        """Returns the logarithm of the ms of ``count`` workgroups; None without measurements."""
        if not self.points:
            return None
        if len(self.known) >= _KEPT:
            self.known.clear()
        log_ms = self.known[count] = self._interpolate(math.log(count))
        return log_ms

    def _interpolate(self, log_of_count: float) -> float:
        if len(self._order) != len(self.points):
            self._order = sorted(self.points.values(), key=lambda p: p.log_count)
            self._at = [p.log_count for p in self._order]
        first = bisect_left(self._at, log_of_count)
        last = bisect_right(self._at, log_of_count) - 1
        if first == len(self._order) or last < 0:
            nearest = self._order[min(first, len(self._order) - 1)]
            return nearest.log_ms + log_of_count - nearest.log_count
        above, below = self._order[first], self._order[last]
        width = above.log_count - below.log_count
        share = (log_of_count - below.log_count) / width if width else 0.0
        return below.log_ms + share * (above.log_ms - below.log_ms)

    def learn(self, count: int, ms: float) -> None:
        self.known.clear()
        self.samples += 1
        log_count, log_time = math.log(count), math.log(ms)
        point = self.points.get(_bucket(count))
        if point is None:
            self.points[_bucket(count)] = _Point(log_count, log_time)
            return
        moved = point.learn(log_count, log_time)
        # a device that became slower is slower for every number of workgroups
        for other_point in self.points.values():
            if other_point is not point:
                other_point.log_ms += _COMMON * _clipped(moved, _CLIP)


def _bucket(count: int) -> int:
    """Returns the number of the half octave that a count of workgroups is in.

    All counts in one half octave share a point of the curve.
    """
    return round(2 * math.log2(count))


class CostModel:
    """Predicts the GPU time of slices and learns it from measurements, without a device or a clock.

    Parameters
    ----------
    share : the share of frames that may exceed the budget; the margin is chosen for it.
    guess : the assumed speed of steps that were never measured.

    Examples
    --------
    >>> model = cml.CostModel()
    >>> step = network.program.step_costs()[0]
    >>> model.learn([(step, step.groups)], 0.5)
    >>> round(model.predict_ms(step, step.groups), 3)
    0.5
    """

    def __init__(self, share: float = 0.01, guess: FirstGuess | None = None) -> None:
        self.guess = guess or FirstGuess()
        self._curves: dict[str, _Curve] = {}
        self._unknown = 0.0  # log of measured / predicted for steps never measured before
        self._unknown_samples = _GUESSED_SAMPLES if self.guess.kernels else 0
        self._drift = 0.0
        self._error = _CLIP  # the usual difference of measurements from predictions
        self.tail = TailMargin(share)
        #: the number of lessons; predictions change only when it does
        self.lessons = 0

    def predict_ms(self, step: StepCost, count: int) -> float:
        """Returns the predicted median milliseconds of ``count`` workgroups of the step."""
        if count <= 0:
            return 0.0
        curve = self._curves.get(step.key)
        if curve is None:
            return self._guess(step, count)
        log_ms = curve.known.get(count)
        if log_ms is None:
            log_ms = curve.predict(count)
        return self._guess(step, count) if log_ms is None else math.exp(log_ms + self._drift)

    def _guess(self, step: StepCost, count: int) -> float:
        time_ms = self.guess.work_ms(step, count)
        return self.guess.launch_ms + time_ms * math.exp(self._unknown + self._drift)

    def groups_within(self, step: StepCost, limit: int, ms: float) -> int:
        """Returns how many workgroups, up to ``limit``, are predicted to take at most ``ms``.

        Returns 0 if not even one fits.
        """
        if limit <= 0 or ms <= 0:
            return 0
        if self.predict_ms(step, limit) <= ms:
            return limit
        if self.predict_ms(step, 1) > ms:
            return 0
        low, high = 1, limit
        while high - low > 1:
            middle = (low + high) // 2
            if self.predict_ms(step, middle) <= ms:
                low = middle
            else:
                high = middle
        return low

    def learn(self, parts: Sequence[tuple[StepCost, int]], ms: float) -> None:
        """Learns that the slices ``(step, count)`` in ``parts`` together took ``ms``.

        The time is divided among the slices in proportion to their predictions. An invalid time
        is ignored.
        """
        parts = [(step, count) for step, count in parts if count > 0]
        predicted = [self.predict_ms(step, count) for step, count in parts]
        total = sum(predicted)
        if ms <= 0 or total <= 0 or not math.isfinite(ms):
            return
        ratio = ms / total
        self.lessons += 1
        if all(self._knows(step, count) for step, count in parts):
            error = _clipped(math.log(ratio), _CLIP)
            self._drift += _DRIFT_WEIGHT * _clipped(error, _LITTLE + _USUAL * self._error)
            self._error += _DRIFT_WEIGHT * (abs(error) - self._error)
        for (step, count), share in zip(parts, predicted, strict=True):
            curve = self._curves.pop(step.key, None) or _Curve()
            self._curves[step.key] = curve  # in the order in which they were last measured
            if len(self._curves) > _MOST_KEYS:
                del self._curves[next(iter(self._curves))]
            if not curve.points and share > _TELLING * self.guess.launch_ms:
                self._learn_unknown(ratio)
            curve.learn(count, share * ratio / self.drift)

    def _knows(self, step: StepCost, count: int) -> bool:
        curve = self._curves.get(step.key)
        return curve is not None and _bucket(count) in curve.points

    def _learn_unknown(self, ratio: float) -> None:
        self._unknown_samples += 1
        self._unknown += math.log(ratio) / min(self._unknown_samples, _MEMORY)
        self._unknown = max(-_MOST_UNKNOWN, min(_MOST_UNKNOWN, self._unknown))

    def learn_frame(self, predicted_ms: float, measured_ms: float, budget_ms: float) -> None:
        """Learns the spread of frame times: a full frame took ``measured_ms``."""
        if predicted_ms > 0 and measured_ms > 0 and math.isfinite(predicted_ms + measured_ms):
            self.tail.learn(predicted_ms, measured_ms, budget_ms)

    @property
    def drift(self) -> float:
        """The factor by which the whole device is slower now than when its steps were learned.

        1.3 means 30 % (clocks, heat, other programs). Every prediction includes it.
        """
        return math.exp(self._drift)

    def aim_ms(self, budget_ms: float) -> float:
        """Returns the predicted ms to plan for, so that frames rarely exceed ``budget_ms``."""
        return self.tail.aim_ms(budget_ms)

    def samples(self, key: str) -> int:
        """Returns the number of measurements of a step key; 0 for an unknown one."""
        curve = self._curves.get(key)
        return curve.samples if curve else 0

    # --- as data

    def to_json(self) -> JsonObject:
        """Returns the learned costs as JSON without rounding, for :meth:`from_json`.

        For each step key it has the points of its curve, ``[log of workgroups, log of ms,
        samples, spread]``; the key that was measured last is at the end.
        """
        return {
            "format": _FORMAT,
            "guess": self.guess.to_json(),
            "unknown": self._unknown,
            "unknown_samples": self._unknown_samples,
            "drift": self._drift,
            "error": self._error,
            "curves": {
                key: [[p.log_count, p.log_ms, p.samples, p.spread] for p in curve.points.values()]
                for key, curve in self._curves.items()
            },
        }

    @classmethod
    def from_json(cls, data: object, share: float = 0.01) -> CostModel:
        """Returns a model that predicts like the one whose :meth:`to_json` returned ``data``.

        Raises ``ValueError`` for anything else.
        """
        if not isinstance(data, Mapping) or data.get("format") != _FORMAT:
            raise ValueError(f"not a cost table (wanted format '{_FORMAT}')")
        try:
            model = cls(share, FirstGuess.from_json(data["guess"]))
            model._unknown = finite(data["unknown"], -_MOST_UNKNOWN, _MOST_UNKNOWN)
            model._unknown_samples = int(finite(data["unknown_samples"], 0, _MOST_COUNT))
            model._drift = finite(data["drift"], -_MOST_UNKNOWN, _MOST_UNKNOWN)
            model._error = finite(data["error"], 0, _MOST_LOG)
            for key, rows in data["curves"].items():
                model._curves[key] = _curve_of(rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a cost table: {error!r}") from error
        return model

    def save(self, path: Path) -> None:
        """Writes the learned costs to a JSON file, atomically."""
        write_atomically(path, json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: Path, share: float = 0.01, guess: FirstGuess | None = None) -> CostModel:
        """Returns a model with the costs in a file, or a new one with ``guess`` without a file.

        A file that cannot be used causes a warning and also gives a new model.
        """
        try:
            return cls.from_json(read_json(path), share)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the learned costs in '{path}' are ignored: {error}. They are learned again",
                RuntimeWarning,
                stacklevel=2,
            )
        return cls(share, guess)


def _curve_of(rows: Iterable[Sequence[float]]) -> _Curve:
    curve = _Curve()
    for log_count, log_ms, samples, spread in rows:
        point = _Point(
            finite(log_count, 0, math.log(_MOST_COUNT)),
            finite(log_ms, -_MOST_LOG, _MOST_LOG),
            int(finite(samples, 1, _MOST_COUNT)),
            finite(spread, 0, _MOST_LOG),
        )
        curve.points[_bucket(max(1, round(math.exp(point.log_count))))] = point
    curve.samples = sum(point.samples for point in curve.points.values())
    return curve
