"""Which operators are computed in bands, and in how many, so that memory has a limit: those that
compute the least twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from cml_engine.planning.bands.chart import Chart
from cml_engine.planning.bands.run import Run
from cml_engine.planning.bands.usage import InBandsUse, Usage

#: in how many bands a run may be computed
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
#: where runs may begin and end: before, among and behind nodes that take too much, the places
#: between two nodes that the fewest bytes cross
_MOST_CUTS = 12


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes that all tensors at a step together, and each of them, may take."""

    total: float
    tensor: float

    def hold(self, total: float, tensor: float) -> bool:
        return total <= self.total and tensor <= self.tensor


@dataclass(frozen=True, slots=True)
class Chosen:
    """A run in so many bands, and what it takes then."""

    run: Run
    count: int
    use: InBandsUse


@dataclass(frozen=True, slots=True)
class Path:
    """Runs one behind the other: what they cost, as it is compared."""

    cost: float
    runs: tuple[Chosen, ...] = ()


_NONE = Path(inf)


@dataclass
class Search:
    """Over a graph that takes more than it may. ``asked``: by the number of the last node of a run,
    in how many bands it is to be computed."""

    chart: Chart
    usage: Usage
    asked: Mapping[int, int]
    _runs: dict[tuple[int, int], Run | None] = field(default_factory=dict)
    _uses: dict[tuple[int, int, int], InBandsUse | None] = field(default_factory=dict)

    def cheapest(self, bounds: Bounds) -> tuple[Chosen, ...] | None:
        """The runs by which all is within the bounds with the least work; None where none do."""
        best: dict[int, Path] = {0: Path(0.0)}
        for begin, end in self._ways(bounds):
            so_far, now = best.get(begin, _NONE), best.get(end, _NONE)
            if so_far.cost >= now.cost:
                continue
            if all(self._holds(k, bounds) for k in range(begin, end)):
                best[end] = so_far
            elif (chosen := self._fewest(begin, end, bounds, now.cost - so_far.cost)) is not None:
                best[end] = Path(so_far.cost + chosen.use.work, (*so_far.runs, chosen))
        found = best.get(len(self.chart.graph.nodes), _NONE)
        return None if found is _NONE else found.runs

    def smallest(self, bounds: Bounds) -> Path:
        """The runs by which the fullest step takes the fewest bytes that bands can reach; the
        bounds say of which nodes it is asked."""
        best: dict[int, Path] = {0: Path(0.0)}
        tensors = Bounds(inf, bounds.tensor)
        for begin, end in self._ways(bounds):
            so_far, now = best.get(begin, _NONE), best.get(end, _NONE)
            if so_far.cost >= now.cost:
                continue
            paths = [now]
            if all(self._holds(k, tensors) for k in range(begin, end)):
                whole = max((self.usage.of_node(k) for k in range(begin, end)), default=0)
                paths.append(Path(max(so_far.cost, whole), so_far.runs))
            run = self._run(begin, end)
            if run is not None and self.usage.beside(run)[0] < min(p.cost for p in paths):
                chosen = self._most(run, tensors)
                if chosen is not None:
                    cost = max(so_far.cost, chosen.use.nbytes)
                    paths.append(Path(cost, (*so_far.runs, chosen)))
            best[end] = min(paths, key=lambda path: path.cost)
        return best.get(len(self.chart.graph.nodes), _NONE)

    def _most(self, run: Run, bounds: Bounds) -> Chosen | None:
        """The run in as many bands as its kernels take."""
        counts = self._counts(run)
        while counts:
            use = self._use(run, counts[-1])
            if use is not None:
                held = bounds.hold(use.nbytes, use.largest)
                return Chosen(run, counts[-1], use) if held else None
            counts = counts[: len(counts) // 2]
        return None

    def too_much(self, bounds: Bounds) -> list[int]:
        """The nodes that take more than the bounds, or that are to be in bands."""
        return [k for k in range(len(self.chart.graph.nodes)) if not self._holds(k, bounds)]

    def _holds(self, k: int, bounds: Bounds) -> bool:
        usage = self.usage
        return k not in self.asked and bounds.hold(usage.of_node(k), usage.largest_of_node(k))

    def _ways(self, bounds: Bounds) -> Iterable[tuple[int, int]]:
        """From where to where a run may go, or nodes as they are; the earliest ends first."""
        cuts = self._cuts(bounds)
        for i, end in enumerate(cuts):
            for begin in reversed(cuts[:i]):
                yield begin, end

    def _cuts(self, bounds: Bounds) -> list[int]:
        count = len(self.chart.graph.nodes)
        found = {0, count, *(k + 1 for k in self.asked)}
        for low, high in self._stretches(bounds):
            first, end = low, high
            while first > 0 and self._can(first - 1):
                first -= 1
            while end < count and self._can(end):
                end += 1
            found |= {low, high} | {max(low - 1, first), min(high + 1, end)}
            for places in (range(first, low + 1), range(low + 1, high), range(high, end + 1)):
                found.update(sorted(places, key=self.usage.between)[:_MOST_CUTS])
        return sorted(found)

    def _stretches(self, bounds: Bounds) -> list[tuple[int, int]]:
        """Neighbours that take too much: the first, and the node behind the last."""
        found: list[tuple[int, int]] = []
        for k in self.too_much(bounds):
            if found and found[-1][1] == k:
                found[-1] = (found[-1][0], k + 1)
            else:
                found.append((k, k + 1))
        return found

    def _can(self, k: int) -> bool:
        """Whether a run may have the node: in bands, or before them."""
        has_rows = any(map(self.chart.has_rows, self.chart.graph.nodes[k].outputs))
        return self.chart.rules[k] is not None or not has_rows

    def _run(self, first: int, end: int) -> Run | None:
        key = (first, end)
        if key not in self._runs:
            run = Run(self.chart, first, end)
            across = any(k in self.asked for k in range(first, end - 1))
            self._runs[key] = run if not across and run.possible else None
        return self._runs[key]

    def _counts(self, run: Run) -> list[int]:
        asked = self.asked.get(run.end - 1)
        return [c for c in ((asked,) if asked else COUNTS) if c <= run.most]

    def _fewest(self, begin: int, end: int, bounds: Bounds, below: float) -> Chosen | None:
        """The run in as few bands as hold the bounds, if that is less work than so much more: more
        bands take fewer bytes, and more work."""
        run = self._run(begin, end)
        if run is None or not bounds.hold(*self.usage.beside(run)):
            return None
        counts, found = self._counts(run), None
        if not counts or self.usage.work_in_bands(run, counts[0]) >= below:
            return None
        low, high = 0, len(counts) - 1
        while low <= high:
            middle = high if found is None else (low + high) // 2
            use = self._use(run, counts[middle])
            if use is not None and bounds.hold(use.nbytes, use.largest):
                found, high = Chosen(run, counts[middle], use), middle - 1
            elif found is None:
                if use is not None:
                    return None
                high //= 2  # so many bands are too thin for the kernels that the whole has
                if not middle:
                    return None
            else:
                low = middle + 1
        return found if found is not None and found.use.work < below else None

    def _use(self, run: Run, count: int) -> InBandsUse | None:
        key = (run.first, run.end, count)
        if key not in self._uses:
            self._uses[key] = self.usage.in_bands(run, count)
        return self._uses[key]
