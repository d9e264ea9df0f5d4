"""Places the rounding points of an integer network and groups the tensors that share one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cml_engine.compiler.integer.lowering.elementwise import MOVES, check_resampling
from cml_engine.compiler.integer.lowering.lower_network import INTEGER_OPERATORS
from cml_engine.compiler.integer.lowering.products import check_mean
from cml_engine.compiler.planning.layouts import Ties
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import formula_of, lookup
from cml_engine.ops.declaration.spec import OpSpec

#: operators that compute words from words
_WORD_OPERATORS = MOVES | frozenset("pad resize neg abs relu clamp".split())
_SIGN_OPERATORS = frozenset({"leaky_relu", "prelu"})
_BOUNDS = frozenset({"relu", "clamp"})


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The role of a tensor in an integer network: words, or a pending result.

    ``role`` is ``"words"``, ``"sum"``, ``"two"``, ``"product"`` or ``"function"``. ``base`` is
    the tensor of words that it is a function of, or None if there are several. ``activated`` is
    True if an activation has joined the pending result.
    """

    role: str
    base: str | None = None
    activated: bool = False

    @property
    def pending(self) -> bool:
        return self.role != "words"


@dataclass
class Placement:
    """The rounding points of a network, and the groups of tensors that share one scale.

    ``points`` maps each rounded tensor, inputs included, to its role. ``kinds`` has the type of
    each tensor. ``ties`` are the groups of tensors that share one scale.
    """

    points: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, ValueKind] = field(default_factory=dict)
    ties: Ties = field(default_factory=Ties)
    #: tensors that are computed in floats
    floats: set[str] = field(default_factory=set)
    #: the argument tensor of each function
    bases: dict[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> Mapping[str, list[str]]:
        """The rounding points that share one scale, by the tensor that identifies their group."""
        members: dict[str, list[str]] = {}
        for name in self.points:
            members.setdefault(self.ties.find(name), []).append(name)
        return members


def place_rounding_points(graph: Graph, float_tail: bool = False) -> Placement:
    """Returns the rounding points of a network, and the groups of tensors that share one scale.

    Raises :class:`ModelError` for an operator that has no integer form. With ``float_tail`` that
    operator and all its readers are computed in floats instead.
    """
    placement = Placement()
    for name in graph.inputs:
        if graph.facts[name].dtype == "scalar":
            placement.points[name] = "input"
            placement.kinds[name] = ValueKind("words", name)
    for node in graph.nodes:
        kind = _kind(graph, node, placement, float_tail)
        if kind is None:
            placement.floats.update(node.outputs)
            continue
        for name in node.outputs:
            if not kind.pending:
                placement.kinds[name] = ValueKind("words", name)
                for operand in node.inputs:
                    if operand in placement.kinds:
                        placement.ties.join([operand, name])
            elif _is_deferred(graph, name, kind, placement):
                placement.kinds[name] = kind
            else:
                placement.points[name] = kind.role
                placement.kinds[name] = ValueKind("words", name)
                if kind.base is not None:
                    placement.bases[name] = kind.base
    if constants := [name for name in graph.outputs if name in graph.constants]:
        raise ModelError(
            f"output '{constants[0]}' is the same for all inputs, and an integer network's outputs "
            "are computed: leave it out",
            graph.sources.get(constants[0]),
        )
    return placement


def _kind(graph: Graph, node: Node, placement: Placement, float_tail: bool) -> ValueKind | None:
    """Returns the type of a node's results, or None if they are computed in floats.

    They are if an operand is, or if the node has no integer form and ``float_tail`` is True.
    """
    if not placement.floats.isdisjoint(node.inputs):
        return None
    try:
        return kind_of(graph, node, placement)
    except ModelError:
        if not float_tail:
            raise
        return None


def kind_of(graph: Graph, node: Node, placement: Placement) -> ValueKind:
    """Returns the type of a node's results.

    For a game's exact operator it also joins the operands in ``placement``, because they must
    share one scale. Raises :class:`ModelError` if the node has no integer form.
    """
    spec = lookup(node.op)
    operand_kinds = [placement.kinds[n] for n in node.inputs if n in placement.kinds]
    if spec.is_custom:
        return _custom_kind(graph, node, placement, spec)
    check_resampling(node)
    pending = [kind for kind in operand_kinds if kind.pending]
    if operand_kinds and not pending and node.op in _WORD_OPERATORS:
        return ValueKind("words")
    if node.op in _BOUNDS and pending and node.inputs[0] in placement.kinds:
        return ValueKind(pending[0].role, pending[0].base, True)
    if node.op in _SIGN_OPERATORS and operand_kinds:
        if not pending:
            return ValueKind(
                "sum", operand_kinds[0].base if _one_number(graph, node) else None, True
            )
        if pending[0].role == "sum" and not pending[0].activated:
            return ValueKind("sum", None, True)
    base = _base(graph, node, placement)
    is_quotient = node.op == "div" and node.inputs[1] not in graph.constants
    is_other = node.op not in INTEGER_OPERATORS or bool(pending) or is_quotient
    if formula_of(node.op) is not None and base is not None and is_other:
        return ValueKind("function", base)
    if node.op in INTEGER_OPERATORS and operand_kinds and not pending and not is_quotient:
        check_mean(node, graph.facts[node.inputs[0]])
        role = {"add": "two", "sub": "two"}.get(node.op, "sum")
        is_scaling = node.op in ("add", "sub", "mul", "div") and base is not None
        if node.op == "mul" and len(operand_kinds) == 2:
            role = "product"
        return ValueKind(role, base if is_scaling else None)
    raise ModelError(
        f"{node.title} has no integer form: leave it outside of the network, write it with "
        "operators that quantize (cml docs your_model), or let the network end in floats "
        "(--float-tail)",
        node.source,
    )


def _custom_kind(graph: Graph, node: Node, placement: Placement, spec: OpSpec) -> ValueKind:
    """Returns the type of the results of a game's operator.

    An exact operator gives words or sums; its operands are joined in ``placement``, because they
    must share one scale. Any other operator must be a function of one tensor. Raises
    :class:`ModelError` if the operator is neither.
    """
    read = [n for n in node.inputs if n in placement.kinds]
    if spec.exact and read and not any(placement.kinds[n].pending for n in read):
        placement.ties.join(read)
        return ValueKind("words" if spec.bounds is None else "sum")
    base = _base(graph, node, placement)
    if spec.exact or spec.formula is None or base is None:
        raise ModelError(
            f"{node.title} has no integer form: it is a game's own operator. Register it with "
            "exact=True if of whole numbers it computes whole numbers (cml docs custom_operators), "
            "leave it outside of the network, or let the network end in floats (--float-tail)",
            node.source,
        )
    return ValueKind("function", base)


def _base(graph: Graph, node: Node, placement: Placement) -> str | None:
    """Returns the one tensor of words that the node's result is a function of, or None if there
    is none."""
    bases = [placement.kinds[n].base for n in node.inputs if n in placement.kinds]
    if not bases or any(base is None or base != bases[0] for base in bases):
        return None
    return bases[0] if _one_number(graph, node) else None


def joined_constants(graph: Graph, node: Node) -> list[str]:
    """Returns the constants that an operator on words joins or compares with its other operands."""
    if node.op not in MOVES:
        return []
    return [n for n in node.inputs if n in graph.constants and graph.facts[n].dtype == "scalar"]


def _one_number(graph: Graph, node: Node) -> bool:
    """Returns True if each constant operand of the node has a single element."""
    return all(graph.facts[n].size == 1 for n in node.inputs if n in graph.constants)


def _is_deferred(graph: Graph, name: str, kind: ValueKind, placement: Placement) -> bool:
    """Returns True if all readers of the pending tensor ``name`` join its rounding.

    It then needs no rounding point of its own. Tensors that are read after a run are never
    deferred.
    """
    readers = graph.consumers.get(name)
    if name in graph.roots or not readers:
        return False
    return all(_takes_unrounded(graph, reader, name, kind, placement) for reader in readers)


def _takes_unrounded(
    graph: Graph, reader: Node, name: str, kind: ValueKind, placement: Placement
) -> bool:
    if lookup(reader.op).exact:
        return False
    if reader.op in _BOUNDS and reader.inputs[0] == name:
        return all(n in graph.constants for n in reader.inputs[1:])
    if reader.op in _SIGN_OPERATORS and kind.role == "sum" and not kind.activated:
        return True
    if formula_of(reader.op) is None or kind.base is None or not _one_number(graph, reader):
        return False
    operands = [n for n in reader.inputs if n != name and n not in graph.constants]
    operand_kinds = [placement.kinds.get(n) for n in operands]
    return all(k is not None and k.base == kind.base for k in operand_kinds)
