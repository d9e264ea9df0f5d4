"""Chooses how tensors are stored: in blocks of four channels, and in fewer bits
(``cml_engine/ir/layout.py``).

A tensor is blocked if its producer can write blocks and all its readers can read them. Operators
that need one layout for all their feature maps (elementwise ones) tie those tensors together, and
tied tensors get one layout. Inputs and outputs of the graph stay plain, because the host accesses
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import get_args

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.planning.draft import Draft, Storage
from cml_engine.errors import InputError, located
from cml_engine.errors.arguments import check_choice
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4, C4H, HALF, PLAIN, block_words, whole_layout
from cml_engine.ops.declaration.epilogue import reads_blocks
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Half

_NOTHING: Mapping[str, str] = MappingProxyType({})


def choose_layout(graph: Graph, overrides: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Returns the layout of every tensor that is not plain, by name.

    ``overrides`` has the layouts that the caller decides, by tensor. Raises :class:`InputError`
    if one is impossible.
    """
    ties = Ties()
    plain: set[str] = {*graph.inputs, *graph.persistent, *graph.constants}
    plain.update(name for name, layout in overrides.items() if layout == PLAIN)
    requested = {name for name, layout in overrides.items() if layout == C4}
    for node in graph.nodes:
        _visit(graph, node, ties, plain, requested)
    refused = {ties.find(name) for name in plain}
    blocked = {ties.find(name) for name in requested}
    chosen = {}
    for node in graph.nodes:
        for name in node.outputs:
            tie = ties.find(name)
            if tie in blocked and tie not in refused:
                chosen[name] = C4
    for name, layout in overrides.items():
        if layout == C4 and name not in chosen:
            raise InputError(
                f"decide: '{name}' cannot lie in blocks of four channels: {why_plain(name, graph)}"
            )
    return chosen


def why_plain(name: str, graph: Graph) -> str:
    """Returns the reason why a plain tensor is not stored in blocks, for a list of decisions."""
    if name in graph.persistent or name in graph.constants:
        return "what the host gives or reads is plain"
    if not is_feature_map(graph.facts[name]):
        return "it is no feature map"
    if not _fills_blocks(graph, name):
        return "it has fewer than four channels"
    for node in graph.nodes:
        kernel = lookup(node.op).kernel
        touches = name in node.outputs or name in node.reads
        if touches and (kernel is None or kernel.layouts == "plain"):
            return f"{node.title} works on plain maps"
    return "nothing gains by blocks, or it is tied to a map that is plain"


def _visit(graph: Graph, node: Node, ties: Ties, plain: set[str], requested: set[str]) -> None:
    """Adds the layout constraints of one node to ``ties``, ``plain`` and ``requested``.

    ``ties`` gets the tensors that must have one layout, ``plain`` those that must be plain, and
    ``requested`` those that gain by blocks.
    """
    kernel = lookup(node.op).kernel
    layouts = kernel.layouts if kernel else "plain"
    names = node.tensors
    result = graph.facts[node.outputs[0]]
    maps = [n for n in names if is_feature_map(graph.facts[n])]
    if layouts == "plain" or result.rank < 3:
        plain.update(names)
        return
    if layouts == "each" and any(not is_one_position(graph.facts[n]) for n in maps):
        maps = [n for n in maps if not is_one_position(graph.facts[n])]
    plain.update(n for n in names if not is_feature_map(graph.facts[n]))
    if layouts in ("same", "copies", "each"):
        partial = layouts == "copies" and all(n in graph.words for n in maps)
        _tie_same(graph, maps, result, ties, plain, partial)
        return
    if layouts in ("blocks", "joins"):
        partial = layouts == "joins" and all(n in graph.words for n in maps)
        ties.join(maps)
        if any(graph.facts[n].shape[1] % 4 for n in maps) and not partial:
            plain.update(maps)
        return
    ends = [node.inputs[0], node.outputs[0]]
    requested.update(n for n in ends if _fills_blocks(graph, n))
    plain.update(n for n in ends if not _fills_blocks(graph, n))
    # an epilogue reads an operand of the result's shape in the result's layout, and per-channel
    # values in plain layout; filters are packed at load
    operands = [n for e in node.epilogues for n in e.inputs if n in maps]
    if not _reads_either(graph, node):
        ties.join([node.outputs[0], *(n for n in operands if graph.facts[n] == result)])
    plain.update(n for n in operands if graph.facts[n] != result)
    plain.update(n for n in node.inputs[1:] if n in maps)


def _reads_either(graph: Graph, node: Node) -> bool:
    """Returns True if the node's epilogues can read maps of the result's shape in blocks although
    the result is plain.

    They can if the result is an output of an integer network and its shape allows it.
    """
    result = node.outputs[0]
    return bool(graph.words) and result in graph.persistent and reads_blocks(graph.facts[result])


def _tie_same(
    graph: Graph, maps: list[str], result: Fact, ties: Ties, plain: set[str], partial: bool
) -> None:
    """Adds the constraints of an elementwise node to ``ties`` and ``plain``: one layout for its
    feature maps.

    Maps with other channels than the result are plain. Maps with a partial last block are plain
    unless the node only copies (``partial``), because lanes past the last channel would not stay
    zero.
    """
    blocked = [n for n in maps if graph.facts[n].shape[1:2] == result.shape[1:2]
               and graph.facts[n].rank == result.rank]  # fmt: skip
    ties.join(blocked)
    if result.shape[1] % 4 and not partial:
        plain.update(blocked)
    plain.update(n for n in maps if n not in blocked)


def _fills_blocks(graph: Graph, name: str) -> bool:
    """Returns True if the channels of map ``name`` fill at least one block.

    A block has four channels, or more for the packed words of an integer network.
    """
    packed = whole_layout(*graph.words[name]) if name in graph.words else None
    return graph.facts[name].shape[1] >= (block_words(packed) if packed else 4)


def is_feature_map(fact: Fact) -> bool:
    """Returns True for float tensors of rank 3 or more, which may be stored in blocks of
    channels."""
    return fact.rank >= 3 and fact.dtype == "scalar"


def is_one_position(fact: Fact) -> bool:
    """Returns True if a map has one position and fills its blocks, so that its blocked and plain
    layouts are the same."""
    return fact.rank >= 3 and fact.shape[1] % 4 == 0 and fact.size == fact.shape[0] * fact.shape[1]


class Ties:
    """Sets of tensors that must have one layout (union-find): ``join`` merges the sets of
    tensors, ``find`` returns the tensor that identifies a set."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        root = name
        while (above := self._parent.get(root, root)) != root:
            root = above
        while name != root:  # path compression
            self._parent[name], name = root, self._parent.get(name, name)
        return root

    def join(self, names: Iterable[str]) -> None:
        roots = [self.find(name) for name in names]
        for root in roots[1:]:
            self._parent[root] = roots[0]


# -- choose storage -------------------------------------------------------------------------------
# Chooses the feature maps and weights that are stored in fewer bits (``cml_engine/ir/layout.py``).
#
# If 16-bit storage is requested, it applies to every map in blocks of four channels whose producer
# and readers all support it; ``Kernel.half`` declares that support. Operators that move data
# without computing tie their tensors together, and tied tensors get one storage. The filter of a
# convolution has 16 bits if the map that it reads or writes has. A matrix of weights has 16 bits
# if its product supports it. Arithmetic is in 32 bits.
#
# The maps of integer networks are whole numbers. They are stored in the fewest sufficient bits by
# the same kernels, without a request, because that is lossless.


def decide_layouts(draft: Draft) -> Draft:
    """Returns the draft with the layout of every tensor that is not plain.

    Tensors to be kept take no part in that, so that other results are bit-identical without them.
    """
    options = draft.options
    layouts = layouts_for(
        without_taps(draft.graph), draft.storage, options.decided("storage"),
        options.decided("layout"),
    )  # fmt: skip
    return replace(draft, layouts=layouts)


def without_taps(graph: Graph) -> Graph:
    """Returns the graph without its kept tensors and without the nodes that only these need."""
    return eliminate_dead_code(graph.with_(taps={})) if graph.taps else graph


def layouts_for(
    graph: Graph,
    storage: Storage = "float",
    overrides: Mapping[str, str] = _NOTHING,
    layout_overrides: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """Returns the layout of every tensor that is not plain, by name, with the storage applied.

    ``storage`` is the default. ``overrides`` has the storage of tensors for which the caller
    decides it; ``layout_overrides`` has the layouts that the caller decides.
    """
    check_choice(get_args(Storage), storage, "storage")
    layouts = choose_layout(graph, layout_overrides)
    if graph.words:
        return _in_words(graph, layouts, overrides)
    if storage == "half" or overrides:
        return choose_storage(graph, layouts, overrides, storage)
    return layouts


def choose_storage(
    graph: Graph, layouts: Mapping[str, str], overrides: Mapping[str, str], storage: Storage
) -> dict[str, str]:
    """Returns the layouts with ``c4h`` instead of ``c4`` for maps that are stored in 16 bits.

    ``overrides`` has the storage that the caller decides by tensor; ``storage`` is the default.
    Raises :class:`InputError` if a requested storage is impossible.
    """
    ties, refused = stored_alike(graph, layouts)
    requested = {ties.find(name): stored for name, stored in overrides.items()}

    def in_half(name: str) -> bool:
        root = ties.find(name)
        return requested.get(root, storage) == "half" and root not in refused

    stored_layouts = {
        name: C4H if layout == C4 and in_half(name) else layout for name, layout in layouts.items()
    }
    stored_layouts |= {
        n: HALF for n in matrices_in_half(graph) if overrides.get(n, storage) == "half"
    }
    for name, stored in overrides.items():
        if (stored_layouts.get(name) in (C4H, HALF)) != (stored == "half"):
            raise InputError(
                f"decide: '{name}' cannot be stored as '{stored}': "
                f"{_against(name, layouts, refused.get(ties.find(name)))}"
            )
    return stored_layouts


def stored_alike(graph: Graph, layouts: Mapping[str, str]) -> tuple[Ties, dict[str, Node]]:
    """Returns the ties between blocked maps that must have one storage, and the sets of maps that
    must have 32 bits.

    The second result maps the tensor that identifies the set to the node that requires 32 bits.
    """
    ties = Ties()
    full_size: dict[str, Node] = {}
    for node in graph.nodes:
        results = {n for n in node.outputs if layouts.get(n) == C4}
        read = {n for n in node.reads if layouts.get(n) == C4}
        support = half_of(node, graph.facts, packed=bool(graph.words))
        if support == "none" or _stands_beside_plain(node, graph, layouts):
            full_size |= dict.fromkeys(read | results, node)
        elif support == "reads":
            full_size |= dict.fromkeys(results, node)
        elif support == "alike":
            ties.join(read | results)
    return ties, {ties.find(name): node for name, node in full_size.items()}


def _in_words(
    graph: Graph, layouts: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, str]:
    """Returns the layouts of an integer network, with a packed layout for maps of whole numbers.

    A blocked map is packed if it and all maps tied to it hold whole numbers. Raises
    :class:`InputError` if ``overrides`` is not empty.
    """
    if overrides:
        raise InputError(
            f"decide: '{next(iter(overrides))}' is of an integer network, whose maps are stored in "
            "as few bits as hold them: leave it out"
        )
    ties, refused = stored_alike(graph, layouts)
    tied: dict[str, list[str]] = {}
    for name, layout in layouts.items():
        if layout == C4 and ties.find(name) not in refused:
            tied.setdefault(ties.find(name), []).append(name)
    packed_layouts = dict(layouts)
    for names in tied.values():
        if all(name in graph.words for name in names):
            ranges = [graph.words[name] for name in names]
            packed = whole_layout(min(e[0] for e in ranges), max(e[1] for e in ranges))
            packed_layouts |= dict.fromkeys(names, packed or C4)
    return packed_layouts


def _against(name: str, layouts: Mapping[str, str], node: Node | None) -> str:
    """Returns the reason why a tensor cannot have the requested storage, as the end of a message.

    ``node`` is the node that requires 32 bits, if any.
    """
    if layouts.get(name) != C4:
        return "in 16 bits are only maps in blocks of four channels, and weights of products"
    if node is not None:
        return f"{node.title} takes it, or one that is stored alike, in 32 bits"
    return "another that is stored alike is asked to be otherwise"


def _stands_beside_plain(node: Node, graph: Graph, layouts: Mapping[str, str]) -> bool:
    """Returns True if the node uses blocked maps of one position together with larger plain maps.

    Kernels over plain maps cannot read 16-bit numbers, which are stored in groups of four.
    """
    maps = [n for n in node.tensors if is_feature_map(graph.facts[n])]
    blocked = [n for n in maps if layouts.get(n) == C4]
    plain = [n for n in maps if n not in blocked and not is_one_position(graph.facts[n])]
    return bool(plain) and any(is_one_position(graph.facts[n]) for n in blocked)


def matrices_in_half(graph: Graph) -> set[str]:
    """Returns the names of the constants that are read only as weights of products that support
    16 bits."""
    matrices: set[str] = set()
    excluded: set[str] = set(graph.roots)
    for node in graph.nodes:
        weights = {
            name
            for name in node.inputs[1:2]
            if graph.is_constant(name) and not weight_blocks(graph.constants[name])
        }
        half = lookup(node.op).traits.matrix_in_half
        supported = weights if half and half(node, graph.facts) else set()
        matrices |= supported
        excluded.update(n for n in node.reads if n not in supported or node.reads.count(n) > 1)
    return matrices - excluded


def half_of(node: Node, facts: Mapping[str, Fact], packed: bool = False) -> Half:
    """Returns which of the node's blocked feature maps its kernel can read or write in 16 bits.

    ``"none"``, ``"each"`` independently, ``"alike"`` (all or none), or ``"reads"`` (the
    operands). Operators of integer networks have ``"none"``, except for ``packed`` words.
    """
    spec = lookup(node.op)
    if spec.kernel is None or (spec.traits.is_integer and not packed):
        return "none"
    half = spec.kernel.half
    if callable(half):
        with located(node.source), calling(spec.is_custom, "half", node_fault(node)):
            half = half(node, facts)
    # such kernels unpack 16-bit numbers themselves and cannot unpack words
    return "none" if packed and half == "reads" else half


def rounded_weights(node: Node, graph: Graph, layouts: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the node's constants that are stored in 16 bits."""
    half = lookup(node.op).traits.filter_in_half
    if half and graph.is_constant(node.inputs[1]):
        few_bits = weight_blocks(graph.constants[node.inputs[1]]) is not None
        return (node.inputs[1],) if half(node, layouts) and not few_bits else ()
    return tuple(name for name in node.inputs if layouts.get(name) == HALF)
