"""Adds the tensors that a host wants to read to an optimized graph, apart from its own nodes."""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.planning.layouts import is_feature_map
from cml_engine.ir.graph import Attrs, Graph, Node, unused_name


def add_kept_tensors(graph: Graph, written: Graph) -> Graph:
    """Returns the optimized graph with nodes for the kept tensors of ``written``.

    ``written`` is the graph before the passes. A tensor that the optimized graph computes is
    copied. One that a pass removed is computed a second time from the nearest tensors that exist,
    by the nodes of ``written`` without any fusing. No node that was in ``graph`` reads an added
    tensor, so its results stay bit-identical.
    """
    position = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
    existing = {*graph.inputs, *position, *(name for name, _ in graph.updates)}
    needed = dict.fromkeys(written.taps.values())
    recomputed: list[Node] = []
    for node in reversed(written.nodes):
        if any(name in needed and name not in existing for name in node.outputs):
            recomputed.insert(0, node)
            needed |= dict.fromkeys(node.reads)
    new_constants = [n for n in needed if n in written.constants and n not in existing]
    copied = [n for n in needed if n in position and is_feature_map(written.facts[n])]
    names = {
        name: unused_name(f"{name}.kept", graph.facts, written.facts)
        if name in graph.facts
        else name
        for name in (*new_constants, *copied, *(n for node in recomputed for n in node.outputs))
    }
    # the host reads plain maps, and the original may lie in blocks of channels
    copy = Attrs({"factor": 1})
    added = [Node("pixel_shuffle", (name,), (names[name],), copy) for name in copied]
    for node in recomputed:
        inputs, outputs = (tuple(names.get(n, n) for n in e) for e in (node.inputs, node.outputs))
        added.append(replace(node, inputs=inputs, outputs=outputs))
    following: dict[int, list[Node]] = {}
    for node in added:
        index = max((position.get(name, -1) for name in node.reads), default=-1)
        position |= dict.fromkeys(node.outputs, index)
        following.setdefault(index, []).append(node)
    nodes = [*following.get(-1, ())]
    for index, node in enumerate(graph.nodes):
        nodes += [node, *following.get(index, ())]
    facts = {new: written.facts[name] for name, new in names.items()}
    word_ranges = {new: written.words[name] for name, new in names.items() if name in written.words}
    return graph.with_(
        nodes=tuple(nodes),
        constants={**graph.constants, **{names[n]: written.constants[n] for n in new_constants}},
        facts={**graph.facts, **facts},
        words={**graph.words, **word_ranges},
        taps={name: names.get(name, name) for name in written.taps},
    )
