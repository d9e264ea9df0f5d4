"""Plans an optimized graph with the caller's decisions, with operators in bands of rows if its
activations would exceed a memory limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.partition import move_to_cpu
from cml_engine.compiler.plan import BandedOperators, Plan
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
from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions, resolve_overrides
from cml_engine.compiler.planning.dispatches import Draft, PlanOptions, Sibling
from cml_engine.compiler.planning.layouts import Storage, layouts_for
from cml_engine.compiler.planning.lower import complete_draft, place_draft, views_of
from cml_engine.errors import CmlError, InputError, InternalError
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.limits import Limits
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

    def find_excess(self, bounds: Bounds) -> list[int]:
        """Returns the numbers of the nodes that exceed the bounds without bands, or that the
        caller requested in bands."""
        return [
            k
            for k in range(len(self.facts.chart.graph.nodes))
            if not self._fits_without_bands(k, bounds)
        ]

    def _fits_without_bands(self, k: int, bounds: Bounds) -> bool:
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
            if self._fits_without_bands(begin, bounds):
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


def plan_in_bands(draft: Draft) -> Plan:
    """Returns the plan of a draft, with operators in bands if it would exceed ``arena_limit``.

    Bands are also used if a tensor is larger than a buffer, or if the caller requests them. Raises
    :class:`InputError` or :class:`DeviceError` if bands do not help.
    """
    options = draft.options
    max_bytes = draft.limits.max_buffer_bytes // draft.align * draft.align
    fits = all(item.nbytes <= max_bytes for item in draft.items)
    limit = options.arena_limit or inf
    bands = {name: int(count) for name, count in options.decided("bands").items()}
    if fits and not any(count > 1 for count in bands.values()):
        plan = place_draft(draft)
        if plan.memory.peak <= limit:
            return plan
    return _BandPlanner(draft, Bounds(limit, max_bytes), bands).plan()


class _BandPlanner:
    """Plans one draft with operators in bands, within ``bounds`` and with the ``requested``
    numbers of bands."""

    def __init__(self, draft: Draft, bounds: Bounds, requested: Mapping[str, int]) -> None:
        self.draft, self.bounds, self.requested = draft, bounds, requested
        graph = draft.graph
        self.kernels = {title: picks[0][0] for title, picks in draft.chosen.items() if picks}
        self.chart = find_graph_rows(
            graph, self.kernels, [n for n, count in requested.items() if count == 1]
        )
        numbers = {name: k for k, node in enumerate(graph.nodes) for name in node.outputs}
        self.numbers = {numbers[name]: count for name, count in requested.items() if count > 1}
        # bands may allow other views than the graph without bands
        views = views_of(draft)
        self.usage = MemoryUsage(draft, views)
        facts = RunFacts(self.chart, self.usage, self.numbers)
        #: pairs of the facts for nodes in bands and the memory usage of other nodes
        self.facts_and_usage = [(facts, self.usage)]
        if views:
            without_views = RunFacts(self.chart, MemoryUsage(draft, {}), self.numbers)
            self.facts_and_usage += [
                (without_views, without_views.usage),
                (without_views, self.usage),
            ]

    def plan(self) -> Plan:
        limit = self.bounds.total
        plan = self._plan_within(limit, self._searches()[:2])
        if plan is not None:
            return plan
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
        if smallest.memory.peak <= limit:
            return smallest
        raise self._limit_error(smallest.memory.peak)

    def _plan_within(self, limit: float, searches: Sequence[BandSearch]) -> Plan | None:
        """Returns a plan of at most ``limit`` bytes, or None if the searches find none in
        ``_MAX_ATTEMPTS`` plans.

        A plan that exceeds its estimate lowers the limit of the next search.
        """
        bounds = replace(self.bounds, total=limit)
        for _ in range(_MAX_ATTEMPTS):
            path = _cheapest(searches, bounds)
            if path is None:
                return None
            plan = self._plan(path.runs, searches)
            if plan is None:
                continue
            if plan.memory.peak <= limit:
                return plan
            total = min(bounds.total * limit / plan.memory.peak, path.nbytes - 1)
            bounds = replace(bounds, total=total)
        return None

    def _dispatches(self, path: BandPath) -> int:
        """Returns the number of dispatches of all bands of a path, without the copies that cut
        and join bands."""
        steps = self.usage.steps
        return sum(c.count * (steps[c.run.end - 1][1] - steps[c.run.first][0]) for c in path.runs)

    def _searches(self) -> list[BandSearch]:
        return [BandSearch(*facts_and_usage) for facts_and_usage in self.facts_and_usage]

    def _plan_least_memory(self, is_quick: bool) -> Plan | None:
        """Returns the plan with the fewest bytes that bands can reach, or None; it does not depend
        on the limit.

        With ``is_quick`` it also looks for plans smaller than the estimates.
        """
        best, searches = None, self._searches()
        for search in searches:
            for _ in range(_MAX_ATTEMPTS):
                smallest = search.smallest(self.bounds)
                if smallest is None or (best and smallest.nbytes >= best.memory.peak):
                    break
                path = search.cheapest(replace(self.bounds, total=smallest.nbytes)) or smallest
                plan = self._plan(path.runs, searches)
                if plan is not None:
                    best = min(best or plan, plan, key=lambda p: p.memory.peak)
                    break
        while is_quick and best is not None:  # plans smaller than the estimate may exist
            smaller = self._plan_within(best.memory.peak - 1, self._searches())
            if smaller is None:
                break
            best = smaller
        return best

    def _plan(self, chosen: Sequence[ChosenRun], searches: Sequence[BandSearch]) -> Plan | None:
        """Returns the plan with the chosen runs in bands, or None if some bands are too thin.

        Bands are too thin if they cannot use the kernels of the whole operator. ``searches``
        then exclude bands of so few rows.
        """
        original = self.draft
        rewriter = rewrite_in_bands(original.graph, [(c.run, c.count) for c in chosen])
        graph = rewriter.finished()
        pinned = {new: original.chosen.get(title, []) for new, title in rewriter.titles.items()}
        untouched = {node.title for node in graph.nodes} & original.chosen.keys()
        pinned |= {title: original.chosen[title] for title in untouched}
        # requested kernels are pinned already; a joined result would have the name of one
        overrides = {**original.options.overrides, "kernel": {}}
        options = replace(original.options, overrides=overrides)
        layouts, packed = rewriter.layouts(original.layouts), dict(original.packed)
        draft = Draft(
            graph, original.limits, layouts, options, original.sibling, packed, pinned,
            rewriter.dispatch_keys, refusals=original.refusals, refused=original.refused,
        )  # fmt: skip
        try:
            complete_draft(draft, rewriter.joins)
        except CmlError:
            banded = [node for node in graph.nodes if node.title in rewriter.titles]
            unlowered = [
                n for n in banded if n.title not in draft.chosen and not lookup(n.op).alias
            ]
            if not unlowered:
                raise
            self._learn(unlowered[:1], rewriter, searches)
            return None
        thin = [
            node
            for node, kernel, dispatch, _ in draft.dispatches
            if not self._is_known(rewriter.titles.get(node.title), node, kernel, dispatch)
        ]
        if thin:
            self._learn(thin, rewriter, searches)
            return None
        plan = place_draft(draft)
        flops: dict[str, float] = {}
        for step in plan.steps:
            title = rewriter.titles.get(step.title, "")
            flops[title] = flops.get(title, 0.0) + step.cost.flops
        bands = tuple(self._describe(c, plan, flops) for c in chosen)
        choices = tuple(original.choices)
        return replace(plan, bands=bands, choices=choices, bands_of=dict(rewriter.titles))

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
        for node, kernel, dispatch, _ in self.draft.dispatches:
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

    @cached_property
    def _flops(self) -> dict[str, float]:
        """The floating-point operations of each operator by title, before cuts into bands."""
        flops: dict[str, float] = {}
        for node, _, _, cost in self.draft.dispatches:
            flops[node.title] = flops.get(node.title, 0.0) + cost.flops
        return flops

    def _describe(
        self, chosen: ChosenRun, plan: Plan, in_bands: Mapping[str, float]
    ) -> BandedOperators:
        run = chosen.run
        titles = [rule.node.title for rule in dict.fromkeys(run.inside.values())]
        flops, banded = (
            sum(count.get(t, 0.0) for t in titles) for count in (self._flops, in_bands)
        )
        return BandedOperators(
            tuple(titles), run.results, chosen.count,
            tuple(str(c) for c in (1, *COUNTS) if c <= run.max_bands or c == chosen.count),
            max(banded / flops - 1.0, 0.0) if flops else 0.0,
            max(map(self.usage.of_node, range(run.first, run.end))),
            min(int(chosen.nbytes), plan.memory.peak),
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
        for k in self._searches()[0].find_excess(self.bounds):
            if self.chart.rules[k] is None:
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
            place_draft(self.draft)
        except CmlError as error:
            return error
        return InternalError(f"'{graph.name}' fits, and has no plan")


def _cheapest(searches: Sequence[BandSearch], bounds: Bounds) -> BandPath | None:
    paths = [path for search in searches if (path := search.cheapest(bounds)) is not None]
    return min(paths, key=lambda path: path.work, default=None)


def _code(kernel: Kernel, dispatch: Dispatch) -> Code:
    """Returns the identity of a dispatch's kernel: its path, and its defines as a set of pairs.

    Defines that describe bindings in parts are left out, because they do not change results.
    """
    pairs = dispatch.defines.items()
    return str(kernel.path), frozenset((k, v) for k, v in pairs if "_PART" not in k)


# -- plan graph -----------------------------------------------------------------------------------

DEFAULT = PlanOptions()
_log = logging.getLogger(__name__)


def plan_graph(
    graph: Graph,
    limits: Limits,
    storage: Storage = "float",
    options: PlanOptions = DEFAULT,
    decide: Decisions = NO_DECISIONS,
    *,
    written: Graph | None = None,
    sibling: Sibling | None = None,
    blocked_layout: bool = True,
    allow_cpu: bool = False,
) -> Plan:
    """Returns the plan of an optimized graph for a device with these limits.

    ``storage`` is the storage of feature maps by default. The decisions ``decide`` may use the
    names of the original graph ``written``. Without ``blocked_layout`` all tensors are plain.
    With ``allow_cpu`` the CPU computes the nodes that their kernels refuse; without it that is an
    error. See :func:`lower` for the rest.
    """
    written, refusals = written or graph, dict[str, str]()
    while True:
        # kept tensors take no part in decisions, so that results are bit-identical without them
        bare = eliminate_dead_code(graph.with_(taps={})) if graph.taps else graph
        overrides = resolve_overrides(decide, written, bare)
        layouts = {}
        if blocked_layout:
            layouts = layouts_for(bare, storage, overrides["storage"], overrides["layout"])
        options = replace(options, overrides=overrides)
        draft = Draft(graph, limits, layouts, options, sibling, refusals=refusals)
        try:
            plan = plan_in_bands(complete_draft(draft))
            break
        except CmlError:
            refused = {n: error.message for n, error in draft.refused.items() if n in graph.facts}
            if not (allow_cpu and refused):
                raise
            graph = move_to_cpu(graph, refused)
            refusals |= refused
    steps, nbytes = len(plan.steps), (plan.memory.peak, plan.weights_bytes)
    _log.info("'%s' is planned: %d steps, arena %d, weights %d bytes", plan.name, steps, *nbytes)
    return plan
