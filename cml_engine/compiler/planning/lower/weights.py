"""Places the constants of a plan in the buffers for weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cml_engine.compiler.planning.lower.draft import Draft
from cml_engine.compiler.planning.sibling import Sibling
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.layout import stored_bytes
from cml_engine.ir.limits import Limits

#: the sizes of bindings are multiples of this, so that vector loads stay inside and consecutive
#: copies begin at offsets that a device can map
MIN_BYTES = 16


@dataclass(slots=True)
class _WeightBlock:
    """Constants at consecutive aligned offsets in a buffer, by name with their offset in bytes."""

    values: dict[str, tuple[int, Array]] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, name: str, array: Array, align: int) -> None:
        self.values[name] = self.nbytes, array
        self.nbytes += -(-max(stored_bytes(array), MIN_BYTES) // align) * align


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The constants of a plan: ``shared`` with plans at other shapes, and its ``own``.

    ``used`` names the shared ones that the plan uses.
    """

    shared: _WeightBlock
    own: _WeightBlock
    used: frozenset[str]

    def find(self, name: str) -> tuple[str, int, Array] | None:
        """Returns the space (``"own"`` or ``"weights"``), byte offset and value of a constant,
        or None if it has no place."""
        if name in self.own.values:
            return ("own", *self.own.values[name])
        return ("weights", *self.shared.values[name]) if name in self.used else None


def place_weights(
    graph: Graph,
    draft: Draft,
    alias: Mapping[str, str],
    limits: Limits,
    sibling: Sibling | None,
) -> PackedWeights:
    """Places the constants that a dispatch binds, an update writes, or an output is, and returns
    them.

    Variables are never shared, nor constants that the sibling does not have. With a sibling the
    shared constants have its offsets.
    """
    names = [alias.get(n, n) for _, _, d, _ in draft.dispatches for n in d.tensors]
    names += [alias.get(n, n) for n in graph.roots]
    variables = {variable: None for variable, _ in graph.updates}
    shared, own, used = _WeightBlock(), _WeightBlock(), set[str]()
    if sibling is not None:
        shared = _WeightBlock(dict(sibling.plan.weights), sibling.plan.weights_bytes)
    for name in dict.fromkeys([*names, *variables]):
        array = draft.packed.get(name, graph.constants.get(name))
        if array is None:
            continue
        if name in variables or not (sibling is None or sibling.has(name, array)):
            own.add(name, array, limits.storage_offset_alignment)
            continue
        used.add(name)
        if sibling is None:
            shared.add(name, array, limits.storage_offset_alignment)
    return PackedWeights(shared, own, frozenset(used))


def aligned_bytes(nbytes: int) -> int:
    return -(-max(nbytes, 1) // MIN_BYTES) * MIN_BYTES
