"""Finds the inputs of integer networks that are stored in the arena as packed words.

The caller's numbers are converted during upload, so that the 32-bit real numbers take no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cml_engine.compiler.plan import InputConversion
from cml_engine.ir.graph import Graph
from cml_engine.ir.layout import WHOLE
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import lookup


@dataclass(frozen=True, slots=True)
class PackedInput:
    """The name of the tensor of words that is stored in place of an input, and the conversion to
    it."""

    words: str
    conversion: InputConversion


def find_packed_inputs(
    graph: Graph, layouts: Mapping[str, str], limits: Limits
) -> dict[str, PackedInput]:
    """Returns the inputs that are converted to packed words during upload, by name, with their
    conversions.

    These inputs have no other reader. An input that is too large for one binding is left out.
    """
    most = limits.max_binding_bytes - limits.storage_offset_alignment
    found, readers = {}, graph.consumers()
    for node in graph.nodes:
        source, words = node.inputs[:1], node.outputs[0]
        if (
            not lookup(node.op).traits.quantizes_input
            or node.epilogues
            or layouts.get(words) not in WHOLE
        ):
            continue
        (name,) = source
        alone = len(readers[name]) == 1 and name in graph.inputs and name not in graph.roots
        if alone and words not in graph.roots and 0 < graph.facts[name].nbytes <= most:
            numbers = (float(node.attrs[n]) for n in ("inverse", "low", "high"))
            found[name] = PackedInput(words, InputConversion(*numbers))
    return found
