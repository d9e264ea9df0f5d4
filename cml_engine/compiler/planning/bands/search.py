"""Chooses the operators of a draft to compute in bands of rows, if it exceeds a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf

import numpy as np

from cml_engine.compiler.plan import BandedOperators
from cml_engine.compiler.planning.arena import (
    check_sizes,
    decide_views,
    find_lifetimes,
    place_arena,
)
from cml_engine.compiler.planning.bands.estimates import (
    COUNTS,
    Bounds,
    Estimates,
    MemoryUsage,
    RunFacts,
)
from cml_engine.compiler.planning.bands.rewrite import (
    BandRewriter,
    OperatorRun,
    find_graph_rows,
    rewrite_in_bands,
)
from cml_engine.compiler.planning.dispatches import check_limits
from cml_engine.compiler.planning.draft import Bands, Draft, Launch, Lowered, NodesRefused
from cml_engine.compiler.planning.lowering_stages import lower_maps
from cml_engine.errors import CmlError, InputError, InternalError
from cml_engine.ir.graph import Array, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import EXACT, Dispatch, Kernel

#: the most dispatches in bands, beyond which planning takes too long, and the number of bands
#: that is always allowed
_MOST_DISPATCHES, _FEWEST = 4096, 4


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run with its number of bands, and the estimated bytes at its fullest step."""

    run: OperatorRun
    count: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class BandPath:
    """A partition of the graph into runs in bands and single nodes.

    ``runs`` are in execution order. ``nbytes`` is the estimated bytes at its fullest step.
    ``work`` is the value that the search minimized: the repeated work for
    :meth:`BandSearch.cheapest`, bytes for :meth:`BandSearch.smallest`.
    """

    runs: tuple[ChosenRun, ...]
    nbytes: float
    work: float


@dataclass
class BandSearch:
    """A search for the runs of a graph to compute in bands, by dynamic programming over its nodes.

    ``plain`` is the memory usage of nodes outside of bands. ``thinnest`` has, by node number,
    the fewest rows with which a band can use the same kernel as the whole node.
    """

    facts: RunFacts
    plain: MemoryUsage
    thinnest: dict[int, int] = field(default_factory=dict)

    def cheapest(self, bounds: Bounds) -> BandPath | None:
        """Returns the path with the least repeated work within the bounds, or None if there is
        none."""
        max_bands = self._most_bands(bounds.total)
        return self._best(bounds, max_bands, lambda nbytes, work: work, np.add)

    def smallest(self, bounds: Bounds) -> BandPath | None:
        """Returns the path whose fullest step takes the fewest bytes, or None if there is none.

        It ignores ``bounds.total``.
        """
        path, max_bands = None, float(COUNTS[-1])
        for _ in range(2):  # the first round finds the nodes that are in bands
            tensors = replace(bounds, total=inf)
            path = self._best(tensors, max_bands, lambda nbytes, work: nbytes, np.maximum)
            max_bands = 0.0 if path is None else self._most_bands(path.nbytes)
        return path

    def _most_bands(self, total: float) -> float:
        """Returns the largest number of bands per run that keeps the number of dispatches low.

        ``total`` is the memory limit in bytes, which decides the nodes that must be in bands.
        """
        facts, dispatches = self.facts, 0
        for k, (first, end) in enumerate(facts.usage.steps):
            if self.plain.of_node(k) > total:
                dispatches += ceil((end - first) / facts.rounds[k])
        return max(_FEWEST, _MOST_DISPATCHES / max(dispatches, 1))

    def fits_without_bands(self, k: int, bounds: Bounds) -> bool:
        """Returns True if node ``k`` does not exceed the bounds without bands, and the caller did
        not request it in bands."""
        plain = self.plain
        fits = plain.of_node(k) <= bounds.total and plain.largest_of_node(k) <= bounds.tensor
        return fits and k not in self.facts.requested

    def _best(
        self,
        bounds: Bounds,
        max_bands: float,
        value: Callable[[Array, Array], Array],
        join: np.ufunc,
    ) -> BandPath | None:
        """Returns the path with the least value and at most ``max_bands`` bands per run, or None if
        none is possible.

        ``value`` gives the value of a run from its bytes and work; ``join`` combines two values.
        Requested numbers of bands may exceed ``max_bands``.
        """
        allowed = (self.facts.counts <= max_bands) | np.isin(
            self.facts.counts, list(self.facts.requested.values())
        )
        count = len(self.facts.chart.graph.nodes)
        best = np.full(count + 1, inf)
        best[count] = 0.0
        chosen: dict[int, ChosenRun] = {}
        for begin, nbytes, work in Estimates(self.facts, bounds, self.thinnest).by_begin():
            if self.fits_without_bands(begin, bounds):
                value_alone = value(np.array(float(self.plain.of_node(begin))), np.zeros(()))
                best[begin] = join(value_alone, best[begin + 1])
            if not len(nbytes):
                continue
            values_after = best[begin + 1 : begin + 1 + len(nbytes), None]
            possible = allowed & (nbytes <= bounds.total) & (nbytes < inf)
            totals = np.where(possible, join(value(nbytes, work), values_after), inf)
            row, column = np.unravel_index(totals.argmin(), totals.shape)
            if totals[row, column] < best[begin]:
                best[begin] = totals[row, column]
                run = OperatorRun(self.facts.chart, begin, begin + 1 + int(row))
                chosen[begin] = ChosenRun(
                    run, int(self.facts.counts[column]), float(nbytes[row, column])
                )
        return None if best[0] == inf else self._path(chosen, float(best[0]))

    def _path(self, chosen: Mapping[int, ChosenRun], work: float) -> BandPath:
        runs, fullest, k = [], 0.0, 0
        while k < len(self.facts.chart.graph.nodes):
            banded = chosen.get(k)
            if banded is None:
                fullest, k = max(fullest, self.plain.of_node(k)), k + 1
            else:
                runs.append(banded)
                fullest, k = max(fullest, banded.nbytes), banded.run.end
        return BandPath(tuple(runs), fullest, work)


# -- plan in bands --------------------------------------------------------------------------------

#: the most attempts to plan when plans take more than their estimates
_MAX_ATTEMPTS = 8
#: no plan is tried if the estimate exceeds the limit by this factor and the plan has more
#: dispatches than can be planned quickly
_HOPELESS, _QUICK = 1.5, 1000
#: the identity of a kernel's code: its path and defines
Code = tuple[str, frozenset[tuple[str, int | str]]]


def fit_in_bands(draft: Draft) -> Draft:
    """Returns the draft, with operators in bands if its arena would exceed ``arena_limit``.

    Bands are also used if a tensor is larger than a buffer, or if the caller requests them. Raises
    :class:`InputError` or :class:`DeviceError` if bands do not help.
    """
    max_bytes = draft.max_bytes
    fits = all(item.nbytes <= max_bytes for item in draft.lifetimes)
    limit = draft.options.arena_limit or inf
    bands = {name: int(count) for name, count in draft.options.decided("bands").items()}
    if fits and not any(count > 1 for count in bands.values()):
        if draft.arena.memory.peak <= limit:
            return draft
        check_limits(draft)  # the CPU computes what the device refuses, before any bands
    return _BandPlanner(draft, Bounds(limit, max_bytes), bands).plan()


class _BandPlanner:
    """Plans one draft with operators in bands, within ``bounds`` and with the ``requested``
    numbers of bands."""

    def __init__(self, draft: Draft, bounds: Bounds, requested: Mapping[str, int]) -> None:
        self.draft, self.bounds, self.requested = draft, bounds, requested
        graph = draft.graph
        self.kernels = {
            title: picks[0][0] for title, picks in draft.lowered.chosen.items() if picks
        }
        self.flops = _flops(
            draft.lowered.dispatches, {node.title: node.title for node in graph.nodes}
        )
        self.chart = find_graph_rows(
            graph, self.kernels, [n for n, count in requested.items() if count == 1]
        )
        numbers = {name: k for k, node in enumerate(graph.nodes) for name in node.outputs}
        self.numbers = {numbers[name]: count for name, count in requested.items() if count > 1}
        # bands may allow other views than the graph without bands
        self.usage = MemoryUsage(draft, draft.views)
        facts = RunFacts(self.chart, self.usage, self.numbers)
        #: pairs of the facts for nodes in bands and the memory usage of other nodes
        self.facts_and_usage = [(facts, self.usage)]
        if draft.views:
            without_views = RunFacts(self.chart, MemoryUsage(draft, {}), self.numbers)
            self.facts_and_usage += [
                (without_views, without_views.usage),
                (without_views, self.usage),
            ]

    def plan(self) -> Draft:
        limit = self.bounds.total
        within = self._plan_within(limit, self._searches()[:2])
        if within is not None:
            return within
        reached = [path for s in self._searches() if (path := s.smallest(self.bounds)) is not None]
        if not reached:
            raise self._refusal_error()
        fewest = min(reached, key=lambda path: path.nbytes)
        is_quick = self._dispatches(fewest) <= _QUICK
        if fewest.nbytes > _HOPELESS * limit and not is_quick:
            raise self._limit_error(ceil(fewest.nbytes), "by estimate ")
        smallest = self._plan_least_memory(is_quick)
        if smallest is None:
            raise self._refusal_error()
        if smallest.arena.memory.peak <= limit:
            return smallest
        raise self._limit_error(smallest.arena.memory.peak)

    def _plan_within(self, limit: float, searches: Sequence[BandSearch]) -> Draft | None:
        """Returns a draft of at most ``limit`` bytes, or None if the searches find none in
        ``_MAX_ATTEMPTS`` drafts.

        A draft that exceeds its estimate lowers the limit of the next search.
        """
        bounds = replace(self.bounds, total=limit)
        for _ in range(_MAX_ATTEMPTS):
            path = _cheapest(searches, bounds)
            if path is None:
                return None
            draft = self._draft(path.runs, searches)
            if draft is None:
                continue
            peak = draft.arena.memory.peak
            if peak <= limit:
                return draft
            total = min(bounds.total * limit / peak, path.nbytes - 1)
            bounds = replace(bounds, total=total)
        return None

    def _dispatches(self, path: BandPath) -> int:
        """Returns the number of dispatches of all bands of a path, without the copies that cut
        and join bands."""
        steps = self.usage.steps
        return sum(c.count * (steps[c.run.end - 1][1] - steps[c.run.first][0]) for c in path.runs)

    def _searches(self) -> list[BandSearch]:
        return [BandSearch(*facts_and_usage) for facts_and_usage in self.facts_and_usage]

    def _plan_least_memory(self, is_quick: bool) -> Draft | None:
        """Returns the draft with the fewest bytes that bands can reach, or None; it does not depend
        on the limit.

        With ``is_quick`` it also looks for drafts smaller than the estimates.
        """
        best, searches = None, self._searches()
        for search in searches:
            for _ in range(_MAX_ATTEMPTS):
                smallest = search.smallest(self.bounds)
                if smallest is None or (best and smallest.nbytes >= best.arena.memory.peak):
                    break
                path = search.cheapest(replace(self.bounds, total=smallest.nbytes)) or smallest
                draft = self._draft(path.runs, searches)
                if draft is not None:
                    best = min(best or draft, draft, key=lambda d: d.arena.memory.peak)
                    break
        while is_quick and best is not None:  # drafts smaller than the estimate may exist
            smaller = self._plan_within(best.arena.memory.peak - 1, self._searches())
            if smaller is None:
                break
            best = smaller
        return best

    def _draft(self, chosen: Sequence[ChosenRun], searches: Sequence[BandSearch]) -> Draft | None:
        """Returns the draft with the chosen runs in bands, or None if some bands are too thin.

        Bands are too thin if they cannot use the kernels of the whole operator. ``searches``
        then exclude bands of so few rows.
        """
        rewriter = rewrite_in_bands(self.draft.graph, [(c.run, c.count) for c in chosen])
        draft = self._begin(rewriter)
        try:
            draft = find_lifetimes(lower_maps(draft))
        except NodesRefused as refusal:
            refused = [n for n in draft.graph.nodes if n.outputs[0] in refusal.errors]
            banded = [node for node in refused if node.title in rewriter.titles]
            if not banded:
                raise
            self._learn(banded[:1], rewriter, searches)
            return None
        thin = [
            node
            for node, kernel, dispatch, _ in draft.lowered.dispatches
            if not self._is_known(rewriter.titles.get(node.title), node, kernel, dispatch)
        ]
        if thin:
            self._learn(thin, rewriter, searches)
            return None
        draft = place_arena(decide_views(draft))
        flops = _flops(draft.arena.dispatches, rewriter.titles)
        runs = tuple(self._describe(c, draft.arena.memory.peak, flops) for c in chosen)
        choices = self.draft.lowered.choices
        return replace(
            draft,
            bands=replace(draft.bands, runs=runs),
            lowered=replace(draft.lowered, choices=choices),
        )

    def _begin(self, rewriter: BandRewriter) -> Draft:
        """Returns the draft of the graph in bands, before its nodes are lowered: with the layouts,
        the kernels and the packed weights of the graph without bands."""
        original, graph = self.draft, rewriter.finished()
        chosen = original.lowered.chosen
        kernels = {new: chosen.get(title, []) for new, title in rewriter.titles.items()}
        kernels |= {n.title: chosen[n.title] for n in graph.nodes if n.title in chosen}
        # requested kernels are in ``kernels``; a joined result would have the name of one
        overrides = {**original.options.overrides, "kernel": {}}
        return replace(
            original,
            graph=graph,
            options=replace(original.options, overrides=overrides),
            layouts=rewriter.layouts(original.layouts),
            lowered=Lowered(packed=original.lowered.packed),
            bands=Bands(kernels, rewriter.dispatch_keys, rewriter.joins, rewriter.titles),
        )

    def _is_known(self, title: str | None, node: Node, kernel: Kernel, dispatch: Dispatch) -> bool:
        """Returns True if a kernel of a band gives bit-identical results to operator ``title``
        without bands.

        It does if the whole operator uses the same kernel, or if the operator is exact or
        elementwise.
        """
        spec = lookup(node.op)
        needs_no_match = title is None or spec.allowed_error == EXACT or spec.formula is not None
        return needs_no_match or _code(kernel, dispatch) in self._codes[title or ""]

    @cached_property
    def _codes(self) -> dict[str, set[Code]]:
        codes: dict[str, set[Code]] = {node.title: set() for node in self.draft.graph.nodes}
        for node, kernel, dispatch, _ in self.draft.lowered.dispatches:
            codes[node.title].add(_code(kernel, dispatch))
        return codes

    def _learn(
        self, thin: Sequence[Node], rewriter: BandRewriter, searches: Sequence[BandSearch]
    ) -> None:
        """Makes the searches exclude bands as thin as the nodes ``thin``, for all operators with
        the same kernels."""
        for node in thin:
            kernel = self.kernels.get(rewriter.titles[node.title])
            for k, rule in enumerate(self.chart.rules):
                if rule is not None and self.kernels.get(rule.node.title) == kernel:
                    rows = rewriter.facts[node.outputs[0]].shape[rule.rows.axis]
                    for search in searches:
                        search.thinnest[k] = max(search.thinnest.get(k, 0), rows + 1)

    def _describe(
        self, chosen: ChosenRun, peak: int, in_bands: Mapping[str, float]
    ) -> BandedOperators:
        run = chosen.run
        titles = [rule.node.title for rule in dict.fromkeys(run.inside.values())]
        flops, banded = (sum(count.get(t, 0.0) for t in titles) for count in (self.flops, in_bands))
        return BandedOperators(
            tuple(titles), run.results, chosen.count,
            tuple(str(c) for c in (1, *COUNTS) if c <= run.max_bands or c == chosen.count),
            max(banded / flops - 1.0, 0.0) if flops else 0.0,
            max(map(self.usage.of_node, range(run.first, run.end))),
            min(int(chosen.nbytes), peak),
        )  # fmt: skip

    def _limit_error(self, least_bytes: int, estimated: str = "") -> InputError:
        """Returns the error for an ``arena_limit`` below ``least_bytes`` bytes, the least possible
        memory.

        ``estimated`` is a word for the message if that number is an estimate.
        """
        graph = self.draft.graph
        k = max(range(len(graph.nodes)), key=self.usage.of_node, default=-1)
        need = self.usage.of_node(k) if k >= 0 else 0
        fullest = f"{graph.nodes[k].title} takes {need} at once as it is; " if need else "Even "
        return InputError(
            f"arena_limit: '{graph.name}' may take {self.bounds.total} bytes for its activations. "
            f"{fullest}in bands of rows the network takes {least_bytes} "
            f"({ceil(least_bytes / 2**20 * 100) / 100} MiB) {estimated}at the "
            f"least{self._obstacle()}. Allow that much, use a smaller input, or run it on tiles "
            "(cml.run_tiled, cml run --tile)",
            graph.nodes[k].source if need else None,
        )

    def _obstacle(self) -> str:
        """Returns the end of a message that names the first operator that exceeds the bounds and
        cannot be computed in bands, or an empty string."""
        search = self._searches()[0]
        for k, rule in enumerate(self.chart.rules):
            if rule is None and not search.fits_without_bands(k, self.bounds):
                return f", for {self.draft.graph.nodes[k].title} is not computed in bands"
        return ""

    def _refusal_error(self) -> CmlError:
        """Returns the error for requested bands that are impossible, or for a tensor larger than
        a buffer."""
        graph = self.draft.graph
        for k, count in self.numbers.items():
            node, rule = graph.nodes[k], self.chart.rules[k]
            name = next(name for name in self.requested if name in node.outputs)
            max_bands = OperatorRun(self.chart, k, k + 1).max_bands if rule is not None else 0
            why = "no run of operators that ends with it has these kernels in so many bands"
            if rule is None:
                why = f"no rows of {node.title} hang on some rows of what it reads alone"
            elif max_bands < count:
                why = f"it has rows for {max_bands} at most"
            message = f"decide: '{name}' cannot be computed in {count} bands: {why}"
            return InputError(message, node.source)
        try:
            check_sizes(self.draft)
        except CmlError as error:
            return error
        return InternalError(f"'{graph.name}' fits, and has no plan")


def _cheapest(searches: Sequence[BandSearch], bounds: Bounds) -> BandPath | None:
    paths = [path for search in searches if (path := search.cheapest(bounds)) is not None]
    return min(paths, key=lambda path: path.work, default=None)


def _flops(launches: Sequence[Launch], titles: Mapping[str, str]) -> dict[str, float]:
    """Returns the floating-point operations of dispatches by the title that ``titles`` has for the
    title of their node."""
    flops: dict[str, float] = {}
    for node, _, _, cost in launches:
        title = titles.get(node.title, "")
        flops[title] = flops.get(title, 0.0) + cost.flops
    return flops


def _code(kernel: Kernel, dispatch: Dispatch) -> Code:
    """Returns the identity of a dispatch's kernel: its path, and its defines as a set of pairs.

    Defines that describe bindings in parts are left out, because they do not change results.
    """
    pairs = dispatch.defines.items()
    return str(kernel.path), frozenset((k, v) for k, v in pairs if "_PART" not in k)
