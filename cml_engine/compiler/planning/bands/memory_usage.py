"""The memory and the work of a graph's operators without bands."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

from cml_engine.compiler.planning.lower import CompleteDraft
from cml_engine.compiler.planning.plan_memory import rounded_up
from cml_engine.compiler.planning.views import Views, merge_lifetimes
from cml_engine.ir.layout import PLAIN, words

#: the number of operations that take as long as one byte of memory traffic
FLOPS_PER_BYTE = 16


class MemoryUsage:
    """The memory and the work of each node of a drafted graph without bands.

    Parts of tensors that are ``views`` take no memory of their own.
    """

    def __init__(self, drafted: CompleteDraft, views: Views) -> None:
        self.drafted, self.graph, self.views = drafted, drafted.graph, views
        self.align = drafted.limits.storage_offset_alignment
        self.items = rounded_up(merge_lifetimes(drafted.items, views), self.align)

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """For each node, the numbers of its first dispatch and of the dispatch after its last."""
        counts = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0)
        for node, *_ in self.drafted.draft.dispatches:
            counts[node.outputs[0]] += 1
        ends = list(accumulate(counts.values()))
        return [(end - n, end) for end, n in zip(ends, counts.values(), strict=True)]

    @cached_property
    def alive(self) -> list[int]:
        """The bytes alive at each dispatch, as a list that begins with those before the first
        and ends with those after the last."""
        count = len(self.drafted.draft.dispatches)
        change = [0] * (count + 3)
        for item in self.items:
            change[item.first + 1] += item.nbytes
            change[item.last + 2] -= item.nbytes
        return list(accumulate(change))[: count + 2]

    def of_node(self, k: int) -> int:
        """Returns the bytes alive at the fullest dispatch of node ``k``; 0 if it has none."""
        first, end = self.steps[k]
        return max(self.alive[first + 1 : end + 1], default=0)

    def largest_of_node(self, k: int) -> int:
        """Returns the bytes of the largest tensor alive while node ``k`` is computed; 0 if it
        has no dispatch."""
        first, end = self.steps[k]
        lives = (i.nbytes for i in self.items if i.first < end and first <= i.last)
        return max(lives, default=0) if end > first else 0

    @cached_property
    def node_work(self) -> list[float]:
        """The work of each node in operations; its memory traffic is converted to operations."""
        by_node = dict.fromkeys((node.outputs[0] for node in self.graph.nodes), 0.0)
        for node, _, _, cost in self.drafted.draft.dispatches:
            by_node[node.outputs[0]] += cost.flops + FLOPS_PER_BYTE * cost.bytes
        return list(by_node.values())

    def nbytes(self, name: str) -> int:
        """Returns the bytes of a whole tensor in its layout."""
        return 4 * words(self.graph.facts[name], self.drafted.layouts.get(name, PLAIN))
