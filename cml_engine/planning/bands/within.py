"""Plans whose activations take no more than they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

from cml_engine.errors import CmlError, InputError, InternalError
from cml_engine.plan import InBands, Plan
from cml_engine.planning.bands.chart import chart_of
from cml_engine.planning.bands.rewrite import Rewriting, in_bands
from cml_engine.planning.bands.run import Run
from cml_engine.planning.bands.search import COUNTS, Bounds, Chosen, Path, Search
from cml_engine.planning.bands.usage import Usage
from cml_engine.planning.lower import Draft, Drafted, drafted, placed, views_of
from cml_engine.planning.sibling import Sibling

#: how often a plan is made whose tensors do not fit together as closely as they could
_TRIES = 8


def planned(whole: Drafted, sibling: Sibling | None = None) -> Plan:
    """The plan of a draft: as it is where that is within ``arena_limit`` and no tensor is larger
    than a buffer, else with operators in bands. :class:`DeviceError` where bands do not help."""
    options, limits = whole.options, whole.limits
    align = limits.storage_offset_alignment
    most = limits.max_buffer_bytes // align * align
    fits = all(item.nbytes <= most for item in whole.items)
    limit = options.arena_limit or inf
    bands = {name: int(count) for name, count in options.bands.items()}
    if fits and not any(count > 1 for count in bands.values()):
        plan = placed(whole, sibling)
        if plan.memory.peak <= limit:
            return plan
    return _Banding(whole, sibling, Bounds(limit, most), bands).plan()


class _Banding:
    """One draft on its way to a plan in bands."""

    def __init__(
        self, whole: Drafted, sibling: Sibling | None, bounds: Bounds, asked: Mapping[str, int]
    ) -> None:
        self.whole, self.sibling, self.bounds, self.asked = whole, sibling, bounds, asked
        graph = whole.graph
        kernels = {title: picks[0][0] for title, picks in whole.draft.chosen.items() if picks}
        self.chart = chart_of(graph, kernels, [n for n, count in asked.items() if count == 1])
        numbers = {name: k for k, node in enumerate(graph.nodes) for name in node.outputs}
        self.numbers = {numbers[name]: count for name, count in asked.items() if count > 1}
        # in bands other parts may lie in their wholes than now, if any
        self.usage, apart = Usage(whole, views_of(whole)), Usage(whole, {})
        self.searches = [Search(self.chart, usage, self.numbers) for usage in (self.usage, apart)]

    def plan(self) -> Plan:
        limit = self.bounds.total
        bounds = self.bounds
        for _ in range(_TRIES):
            chosen = self._cheapest(bounds)
            if chosen is None:
                break
            plan = self._plan(chosen)
            if plan.memory.peak <= limit:
                return plan
            fullest = max(c.use.nbytes for c in chosen)
            total = min(bounds.total * limit / plan.memory.peak, fullest - 1)
            bounds = replace(bounds, total=total)
        least = self._least()
        if least is None:
            raise self._refused()
        if least.memory.peak <= limit:
            return least
        raise self._too_small(least)

    def _cheapest(self, bounds: Bounds) -> tuple[Chosen, ...] | None:
        found = [runs for s in self.searches if (runs := s.cheapest(bounds)) is not None]
        return min(found, key=lambda runs: sum(c.use.work for c in runs), default=None)

    def _least(self) -> Plan | None:
        """The plan that takes the fewest bytes that bands can reach."""
        bounds, found = self.bounds, None

        def smallest_within() -> Path:
            return min((s.smallest(bounds) for s in self.searches), key=lambda path: path.cost)

        while (smallest := smallest_within()).cost < inf:
            bounds = replace(bounds, total=smallest.cost)
            chosen = self._cheapest(bounds)
            plan = self._plan(smallest.runs if chosen is None else chosen)
            if found is not None and plan.memory.peak >= found.memory.peak:
                break
            found, bounds = plan, replace(bounds, total=min(bounds.total, plan.memory.peak) - 1)
        return found

    def _plan(self, chosen: Sequence[Chosen]) -> Plan:
        whole = self.whole
        made = in_bands(whole.graph, [(c.run, c.count) for c in chosen])
        graph = made.finished()
        pinned = {new: whole.draft.chosen.get(title, []) for new, title in made.titles.items()}
        untouched = {node.title for node in graph.nodes} & whole.draft.chosen.keys()
        pinned |= {title: whole.draft.chosen[title] for title in untouched}
        draft = Draft(packed=dict(whole.draft.packed), pinned=pinned)
        # the kernels that are asked for are among those of the whole; a joined result has its name
        options = replace(whole.options, kernels={})
        layouts = made.layouts(whole.layouts)
        found = drafted(graph, whole.limits, layouts, options, self.sibling, draft, made.joins)
        plan = placed(found, self.sibling)
        bands = tuple(self._described(c, made, plan) for c in chosen)
        choices = tuple(whole.draft.choices)
        return replace(plan, bands=bands, choices=choices, bands_of=dict(made.titles))

    def _described(self, chosen: Chosen, made: Rewriting, plan: Plan) -> InBands:
        run = chosen.run
        titles = [rule.node.title for rule in dict.fromkeys(run.inside.values())]
        flops = sum(c.flops for n, _, _, c in self.whole.draft.dispatches if n.title in titles)
        banded = sum(s.cost.flops for s in plan.steps if made.titles.get(s.title) in titles)
        return InBands(
            tuple(titles), run.results, chosen.count,
            tuple(str(c) for c in (1, *COUNTS) if c <= run.most or c == chosen.count),
            max(banded / flops - 1.0, 0.0) if flops else 0.0, self._bytes_of(run.first, run.end),
            chosen.use.nbytes,
        )  # fmt: skip

    def _too_small(self, least: Plan) -> InputError:
        """Why no bands fit into ``arena_limit``, and what would."""
        graph = self.whole.graph
        k = max(range(len(graph.nodes)), key=self.usage.of_node)
        node, need, enough = graph.nodes[k], self.usage.of_node(k), least.memory.peak
        return InputError(
            f"arena_limit: '{graph.name}' may take {self.bounds.total} bytes for its activations. "
            f"{node.title} takes {need} at once as it is; in bands of rows the network takes "
            f"{enough} ({_enough_mib(enough)} MiB) at the least{self._obstacle()}. "
            "Allow that much, use a smaller input, or run it on tiles (cml.run_tiled, cml run "
            "--tile)",
            node.source,
        )

    def _obstacle(self) -> str:
        """What of that which takes too much cannot be computed in bands."""
        for k in self.searches[0].too_much(self.bounds):
            if self.chart.rules[k] is None:
                return f", for {self.whole.graph.nodes[k].title} is not computed in bands"
        return ""

    def _refused(self) -> CmlError:
        """Bands that are asked for cannot be, or a tensor is larger than a buffer."""
        graph = self.whole.graph
        for k, count in self.numbers.items():
            node, rule = graph.nodes[k], self.chart.rules[k]
            name = next(name for name in self.asked if name in node.outputs)
            most = Run(self.chart, k, k + 1).most if rule is not None else 0
            why = "no run of operators that ends with it has these kernels in so many bands"
            if rule is None:
                why = f"no rows of {node.title} hang on some rows of what it reads alone"
            elif most < count:
                why = f"it has rows for {most} at most"
            said = f"decide: '{name}' cannot be computed in {count} bands: {why}"
            return InputError(said, node.source)
        try:
            placed(self.whole, self.sibling)
        except CmlError as error:
            return error
        return InternalError(f"'{graph.name}' fits, and has no plan")

    def _bytes_of(self, first: int, end: int) -> int:
        return max(self.usage.of_node(k) for k in range(first, end))


def _enough_mib(nbytes: int) -> float:
    """Rounded up: as a limit it suffices."""
    return ceil(nbytes / 2**20 * 100) / 100
